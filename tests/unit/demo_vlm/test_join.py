"""A text model and a vision part as one checkpoint: it is transformers' LLaVA, and the text model is still itself."""

from __future__ import annotations

import shutil
from pathlib import Path

import demo_vlm
import pytest
from builders_vision import text_model
from demo_vlm.join import VISION_WEIGHTS, join, rename_token

torch = pytest.importorskip("torch")

_PART = Path(demo_vlm.__file__).parent / "checkpoint"


def random_part(directory: Path) -> Path:
    """A vision part with random weights, as `train` writes it."""
    from demo_vlm.checkpoints import save_state
    from demo_vlm.export import export
    from demo_vlm.vision import VisionPart

    torch.manual_seed(0)
    shutil.copytree(_PART, directory)
    vision = VisionPart()
    save_state(directory / "state.pt", 0, torch.optim.SGD(vision.parameters(), 0.1), vision=vision)
    export(directory / "state.pt", directory / VISION_WEIGHTS)
    return directory


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    base = tmp_path_factory.mktemp("models")
    text = text_model(base / "text")
    join(text, random_part(base / "part"), base / "joined")
    return text, base / "joined"


@pytest.mark.model
def test_every_weight_finds_its_place(joined: tuple[Path, Path]) -> None:
    from transformers import LlavaForConditionalGeneration

    _, info = LlavaForConditionalGeneration.from_pretrained(joined[1], output_loading_info=True)
    assert not any(info.values())


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
    assert processor._get_num_multimodal_tokens([[300, 200]])["num_image_tokens"] == [49]
    content = [{"type": "text", "text": "What colour?"}, {"type": "image", "image": Image.new("RGB", (300, 200), "red")}]
    inputs = processor.apply_chat_template(
        [{"role": "user", "content": content}], tokenize=True, add_generation_prompt=True, return_dict=True, return_tensors="pt"
    )
    ids = inputs["input_ids"][0].tolist()
    assert ids.count(4) == 49
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
