"""Tiny random checkpoints of the multimodal families, complete as on a hub: weights, tokenizer, chat template, processor files.

    path = build_checkpoint("qwen2_5_vl", directory)

Weights are float32 and nonzero everywhere, so that a missing part of a computation changes the result.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PretrainedConfig, PreTrainedTokenizerFast

from support.builders.families import FAMILY_TABLE as OTHER_FAMILIES
from support.builders.family_parts import Family, Ids
from support.builders.newer_families import NEWER_FAMILIES
from support.builders.tokenizer import byte_level_tokenizer

FAMILY_TABLE = OTHER_FAMILIES | NEWER_FAMILIES
FAMILIES: tuple[str, ...] = tuple(FAMILY_TABLE)


def modalities(family: str) -> tuple[str, ...]:
    """The modalities that the family's chat template supports, of image, audio and video."""
    return tuple(FAMILY_TABLE[family].parts)


def part(family: str, modality: str) -> str:
    """The text that the family's chat template writes for a part of a modality, before its placeholder is expanded."""
    return FAMILY_TABLE[family].parts[modality]


def a_config(family: str) -> PretrainedConfig:
    """The configuration of the family's tiny checkpoint."""
    what = FAMILY_TABLE[family]
    return what.config(Ids(_tokenizer(what)))


def build_checkpoint(family: str, directory: Path) -> Path:
    """Write a tiny random checkpoint of the family into the directory. Returns the directory.

    Args:
        family: one of FAMILIES.
    """
    what = FAMILY_TABLE[family]
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer(what)
    tokenizer.save_pretrained(directory)
    (directory / "chat_template.jinja").write_text(_chat_template(what), encoding="utf-8")
    _write_json(directory / "preprocessor_config.json", {**what.preprocessor, "processor_class": what.processor_class})
    _write_json(directory / "processor_config.json", {**what.processor, "processor_class": what.processor_class})
    if what.video_preprocessor is not None:
        _write_json(directory / "video_preprocessor_config.json", what.video_preprocessor)
    _save_weights(what, what.config(Ids(tokenizer)), directory)
    return directory


def _tokenizer(family: Family) -> PreTrainedTokenizerFast:
    named = dict(family.named_tokens)
    base = byte_level_tokenizer(family.first_tokens)
    base.add_special_tokens([*dict.fromkeys([*named.values(), *family.other_tokens])])
    return PreTrainedTokenizerFast(
        tokenizer_object=base,
        bos_token=family.bos,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        unk_token="<|endoftext|>",
        extra_special_tokens=named,
    )


def _chat_template(family: Family) -> str:
    branches = "".join(f"{{%- elif part.type == '{modality}' -%}}{{{{ {text!r} }}}}" for modality, text in family.parts.items())
    return (
        "{%- for message in messages -%}<|im_start|>{{ message.role }}{{ '\\n' }}"
        "{%- if message.content is string -%}{{ message.content }}"
        "{%- else -%}{%- for part in message.content -%}"
        "{%- if part.type == 'text' -%}{{ part.text }}" + branches + "{%- endif -%}{%- endfor -%}{%- endif -%}"
        "{{ '<|im_end|>\\n' }}{%- endfor -%}"
        "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
    )


def _save_weights(family: Family, config: PretrainedConfig, directory: Path) -> None:
    config.architectures = [family.model_class]
    torch.manual_seed(0)
    model = getattr(transformers, family.model_class)(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.3 if "embed_tokens" in name or "lm_head" in name else 0.12)
            elif "newline" in name or name.endswith("bias"):
                parameter.normal_(0, 0.1)
    model.float().save_pretrained(directory)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")
