"""Prepares a model directory for a GGUF file: `python -m triptych_cli.models.prepare_gguf FILE.gguf DIRECTORY`.

It holds the configuration, the tokenizer and the chat template of the file in the form that all services read, and a link to the
file. No weight is read. This is a separate program for the same reason as `convert_gguf`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from triptych.errors import StartupError
from triptych_common.model.gguf import ARCHITECTURES, read_gguf_header

from triptych_cli.models.convert_gguf import check_split, clean_config, convert_tokenizer

#: Name of the link.
GGUF_NAME = "model.gguf"
#: Kinds of rope scaling in GGUF -> in transformers.
_ROPE_TYPES = {"linear": "linear", "yarn": "yarn"}


def prepare(file: Path, out: Path) -> None:
    """Write the directory. Raises ValueError with the reason if the file is of a kind that is not supported."""
    header = read_gguf_header(file)
    out.mkdir()
    if header.architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ValueError(f"it is of the architecture {header.architecture!r}; GGUF files are served of {known}")
    rope = _rope(header.metadata, header.architecture)
    check_split(header.metadata)
    from transformers import AutoConfig, GenerationConfig  # seconds, and what is not supported is refused by now

    config = AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
    cleaned = clean_config(config.to_dict())
    if rope:
        cleaned["rope_parameters"] = {**(config.to_dict().get("rope_parameters") or {}), **rope}
    if (inner := header.metadata.get(f"{header.architecture}.expert_feed_forward_length")) is not None:
        cleaned["moe_intermediate_size"] = inner  # which transformers leaves at its default
    config = type(config)(**cleaned)
    config.architectures = config.architectures or [_causal_class(config.model_type)]
    config.save_pretrained(out)
    convert_tokenizer(file, config.max_position_embeddings).save_pretrained(out)
    GenerationConfig(
        eos_token_id=_eos(header.metadata), bos_token_id=header.metadata.get("tokenizer.ggml.bos_token_id")
    ).save_pretrained(out)
    (out / GGUF_NAME).symlink_to(file.resolve())


def _eos(metadata: dict[str, Any]) -> list[int]:
    """Tokens that end a turn or a text."""
    names = ("eos_token_id", "eot_token_id", "eom_token_id")
    return sorted({metadata[key] for name in names if (key := f"tokenizer.ggml.{name}") in metadata})


def _rope(metadata: dict[str, Any], architecture: str) -> dict[str, Any]:
    """What transformers does not take from the file: how rotary embeddings are scaled, if they are."""
    prefix = f"{architecture}.rope.scaling"
    kind = metadata.get(f"{prefix}.type", "none")
    if kind == "none":
        return {}
    if kind not in _ROPE_TYPES:
        raise ValueError(f"its rope scaling is {kind!r}; supported are {', '.join(_ROPE_TYPES)}")
    if not isinstance(metadata.get(f"{prefix}.factor"), float):
        raise ValueError(f"it has no {prefix}.factor")
    rope = {"rope_type": _ROPE_TYPES[kind], "factor": metadata[f"{prefix}.factor"]}
    if (original := metadata.get(f"{prefix}.original_context_length")) is not None and kind == "yarn":
        rope["original_max_position_embeddings"] = original
    return rope


def _causal_class(model_type: str) -> str:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    entry = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type]
    return entry if isinstance(entry, str) else entry[0]


if __name__ == "__main__":
    try:
        prepare(Path(sys.argv[1]), Path(sys.argv[2]))
    except (ValueError, StartupError) as error:
        sys.exit(f"{sys.argv[1]}: {error}")
