"""Model directories of GGUF files: configuration, tokenizer, chat template, and the link to the file."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console
from support.builders.gguf_files import write_gguf
from transformers import AutoConfig, AutoTokenizer
from triptych_cli.errors import CommandError
from triptych_cli.models.fetch import fetch
from triptych_cli.models.prepare_gguf import prepare
from triptych_common.model.store import eos_token_ids, model_info, resolve_model, served_name


def quiet() -> Console:
    return Console(file=io.StringIO())


def test_it_has_what_the_services_read(tmp_path: Path):
    model = write_gguf(tmp_path / "tiny.gguf", "qwen2", ["Q8_0"], pre="qwen2")
    prepare(tmp_path / "tiny.gguf", tmp_path / "out")
    config = AutoConfig.from_pretrained(tmp_path / "out")
    assert config.architectures == ["Qwen2ForCausalLM"]
    for name in ("hidden_size", "num_hidden_layers", "num_key_value_heads", "vocab_size", "tie_word_embeddings"):
        assert getattr(config, name) == getattr(model.config, name)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "<s>hi</s>"
    assert eos_token_ids(tmp_path / "out") == (257, 259), "the end of a turn, and of a text"
    info = model_info(tmp_path / "out", "tiny")
    assert (info.max_model_len, info.vocab_size, info.architecture) == (256, 260, "Qwen2ForCausalLM")
    assert info.weights_fingerprint
    assert (tmp_path / "out" / "model.gguf").samefile(tmp_path / "tiny.gguf")


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("gpt-2", ["I", "'", "M", "Ġ", "12", "34"]),
        ("smollm", ["I", "'", "M", "Ġ", "1", "2", "3", "4"]),
        ("qwen2", ["I", "'", "M", "Ġ", "1", "2", "3", "4"]),
        ("llama-bpe", ["I", "'", "M", "Ġ", "12", "3", "4"]),
    ],
)
def test_text_is_split_as_the_vocabulary_was_made(pre: str, pieces: list[str], tmp_path: Path):
    write_gguf(tmp_path / "tiny.gguf", "llama", ["Q8_0"], pre=pre)
    prepare(tmp_path / "tiny.gguf", tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("I'M 1234", add_special_tokens=False)) == pieces


def test_scaled_rotary_embeddings_are_taken(tmp_path: Path):
    scaling = {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0}
    write_gguf(tmp_path / "tiny.gguf", "llama", ["Q8_0"], pre="qwen2", metadata=scaling)
    prepare(tmp_path / "tiny.gguf", tmp_path / "out")
    rope = json.loads((tmp_path / "out" / "config.json").read_text())["rope_parameters"]
    assert (rope["rope_type"], rope["factor"]) == ("yarn", 4.0)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"pre": "deepseek-llm"}, r"splits text by 'deepseek-llm' \(tokenizer\.ggml\.pre\); known are smollm, gpt-2"),
        (
            {"pre": "qwen2", "metadata": {"llama.rope.scaling.type": "longrope"}},
            "its rope scaling is 'longrope'; supported are linear, yarn",
        ),
        ({"pre": "qwen2", "metadata": {"llama.rope.scaling.type": "yarn"}}, r"it has no llama\.rope\.scaling\.factor"),
    ],
)
def test_what_is_not_supported_is_told(options: dict, reason: str, tmp_path: Path):
    write_gguf(tmp_path / "tiny.gguf", "llama", ["Q8_0"], **options)
    with pytest.raises(ValueError, match=reason):
        prepare(tmp_path / "tiny.gguf", tmp_path / "out")


def test_another_architecture_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path / "cache"))
    write_gguf(tmp_path / "tiny.gguf", "llama", ["Q8_0"], pre="qwen2")
    content = (tmp_path / "tiny.gguf").read_bytes().replace(b"llama", b"mamba")
    (tmp_path / "tiny.gguf").write_bytes(content)
    with pytest.raises(CommandError, match=re.escape("'mamba'; GGUF files are served of llama, qwen2, qwen3")) as error:
        fetch(str(tmp_path / "tiny.gguf"), quiet())
    assert "Traceback" not in str(error.value)
    assert not [file for file in (tmp_path / "cache").rglob("config.json") if ".partial" not in str(file)]


@pytest.fixture(scope="module")
def fetched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path, str]]:
    """A file of llama, the directory that was made of it, and what was said meanwhile. The cache is that of this module."""
    folder = tmp_path_factory.mktemp("fetched")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TRIPTYCH_CACHE", str(folder / "cache"))
        write_gguf(folder / "tiny.gguf", "llama", ["Q8_0"], pre="qwen2")
        console = quiet()
        path, was_there = fetch(str(folder / "tiny.gguf"), console)
        assert not was_there
        yield folder / "tiny.gguf", path, console.file.getvalue()  # type: ignore[attr-defined]


def test_where_no_terminal_shows_a_spinner_a_line_says_what_takes_long(fetched: tuple[Path, Path, str]):
    assert fetched[2].startswith("reading tiny.gguf\ntiny.gguf is in ")


def test_a_file_is_prepared_once_and_found_after_it_was_moved(fetched: tuple[Path, Path, str], tmp_path: Path):
    file, path, _ = fetched
    assert fetch(str(file), quiet()) == (path, True)
    assert resolve_model(str(file)) == path
    assert served_name(str(file)) == "tiny"
    moved = file.rename(tmp_path / "tiny.gguf")
    assert fetch(str(moved), quiet()) == (path, True)
    assert (path / "model.gguf").samefile(moved)


def test_experts_have_the_sizes_that_the_file_says(tmp_path: Path):
    write_gguf(tmp_path / "tiny.gguf", "qwen3moe", ["Q8_0"], pre="qwen2")
    prepare(tmp_path / "tiny.gguf", tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    wanted = {"moe_intermediate_size": 256, "num_local_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": True}
    assert {key: config[key] for key in wanted} == wanted
