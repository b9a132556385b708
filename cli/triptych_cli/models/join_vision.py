"""Joins a text model and a vision part to a LLaVA checkpoint: `python -m triptych_cli.models.join_vision TEXT VISION_PART
DIRECTORY`.

The text model's weights and vocabulary stay the same, and so do prompts of conversations without images. The image token replaces a
reserved token on which the text model was never trained: its embedding is always replaced by the image's. No row is added, so no
logit changes.

This is a separate program for the same reason as `convert_gguf`.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

#: Weights of a vision part, with the names of LLaVA checkpoints on the hub.
VISION_WEIGHTS = "vision.safetensors"
_TEMPLATE = "chat_template.jinja"
_PROCESSOR = "processor_config.json"
_GENERATION = "generation_config.json"


def join(text_model: Path, vision_part: Path, out: Path) -> None:
    """Write the joined checkpoint.

    Args:
        text_model: a checkpoint directory with tied embeddings, whose weights are in one model.safetensors.
        vision_part: config.json (LLaVA's, without text_config), processor_config.json, chat_template.jinja, vision.safetensors, and
            generation_config.json with the defaults of sampling, which the text model's file lacks.
    """
    out.mkdir(parents=True)
    text_config = _read(text_model / "config.json")
    config = _read(vision_part / "config.json") | {"text_config": text_config}
    _write(out / "config.json", config)
    _join_weights(text_model, vision_part, out)
    image_token = _read(vision_part / _PROCESSOR)["image_token"]
    _write(out / "tokenizer.json", rename_token(_read(text_model / "tokenizer.json"), config["image_token_index"], image_token))
    added = {"extra_special_tokens": {"image_token": image_token}, "processor_class": "LlavaProcessor"}
    _write(out / "tokenizer_config.json", _read(text_model / "tokenizer_config.json") | added)
    _write(out / _GENERATION, _read(text_model / _GENERATION) | _read(vision_part / _GENERATION))
    for name in (_TEMPLATE, _PROCESSOR):
        shutil.copy(vision_part / name, out)


def rename_token(tokenizer: dict[str, Any], token_id: int, name: str) -> dict[str, Any]:
    """A tokenizer.json in which the special token with this id has another name. Raises ValueError if there is no such token."""
    entry = next((token for token in tokenizer["added_tokens"] if token["id"] == token_id and token["special"]), None)
    if entry is None:
        raise ValueError(f"token {token_id} is no special token, so it cannot become {name}")
    vocabulary = {name if token == entry["content"] else token: index for token, index in tokenizer["model"]["vocab"].items()}
    added = [token | {"content": name} if token is entry else token for token in tokenizer["added_tokens"]]
    return tokenizer | {"added_tokens": added, "model": tokenizer["model"] | {"vocab": vocabulary}}


def _join_weights(text_model: Path, vision_part: Path, out: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = {f"language_model.{name}": tensor for name, tensor in load_file(text_model / "model.safetensors").items()}
    save_file(weights | load_file(vision_part / VISION_WEIGHTS), out / "model.safetensors", metadata={"format": "pt"})


def _read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    join(*(Path(argument) for argument in sys.argv[1:4]))
