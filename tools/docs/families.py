"""Writes docs/families.md from the configurations that the parity tests run: `make docs`. With `--check` it only reports whether it
is up to date."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

from transformers import PretrainedConfig, WhisperConfig

from .page import ROOT, write_or_check

sys.path.insert(0, str(ROOT / "tests"))  # the configurations are the tests'
from support.builders.hybrid_families import HYBRIDS
from support.builders.multimodal import FAMILY_TABLE, a_config
from support.builders.newer_text_families import NEWER_FAMILIES
from support.builders.text_families import FAMILIES

FILE = ROOT / "docs" / "families.md"
_HEAD = """# Tested families

`make docs` writes this page from the configurations of the tests.

A family is what a checkpoint's `config.json` names in `model_type`. Of each, a tiny model with random weights is computed in
float32 and compared with transformers: greedy tokens and log probabilities of requests of different lengths, in one batch, in
small chunks, with a hit in the prefix cache ([text](../tests/integration/parity/test_family_parity.py),
[media](../tests/integration/parity/test_media_parity.py), [recurrent states](../tests/integration/parity/test_hybrid_parity.py),
[cross-attention](../tests/integration/parity/test_whisper_parity.py)). That proves the arithmetic. Real weights have run of `llama`
alone (SmolLM2-135M-Instruct, as safetensors and as GGUF). A family that is not here is [checked at
load](models.md#the-self-check-at-load), like every model.

By what their layers have besides full attention, with the tested media in brackets:

"""
_TAIL = """
Bidirectional models that embed are in [models.md](models.md#pooling-models).

Never run: media of Phi-4-multimodal, audio and video of Gemma 4; these are [refused](models.md#media), and text is served.
[Refused](models.md#refused-models), too: Mamba-1 (Jamba, Mamba), lightning attention (MiniMax-01), models of recurrent layers
only (Mamba-2), compressed sparse attention (DeepSeek-V4), and encoder-decoder models other than Whisper (T5).
"""
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


@dataclass
class Row:
    """What is known of a family."""

    traits: dict[str, None] = field(default_factory=dict)  # in order
    media: dict[str, None] = field(default_factory=dict)


def traits(config: PretrainedConfig) -> list[str]:
    """What the layers of a model are made of, besides full attention."""
    text: Any = config.get_text_config()
    kinds = set(getattr(text, "layer_types", None) or ())
    found = []
    if kinds & {"linear_attention", "hybrid", "conv"}:
        found.append(_recurrence(text))
    if getattr(text, "kv_lora_rank", None):
        found.append("latent attention")
    if "sliding_attention" in kinds or (not kinds and getattr(text, "sliding_window", None)):
        found.append("windows")
    if "indexed_attention" in kinds:
        found.append("selected keys")
    if "chunked_attention" in kinds:
        found.append("chunks")
    if config.is_encoder_decoder:
        found.append("cross-attention")
    if any((getattr(text, name, None) or 0) > 1 for name in _EXPERTS):
        found.append("experts")
    return found


def _recurrence(text: Any) -> str:
    if hasattr(text, "conv_L_cache"):
        return "short convolutions"
    if hasattr(text, "linear_head_dim"):
        return "Kimi's delta rule"
    return "gated delta rule" if hasattr(text, "linear_num_value_heads") else "Mamba-2"


def page() -> str:
    """The page."""
    rows: dict[str, Row] = {}
    for config in (FAMILIES | NEWER_FAMILIES | HYBRIDS).values():
        _row(rows, config)
    for name, family in FAMILY_TABLE.items():
        _row(rows, a_config(name)).media.update(dict.fromkeys(family.parts))
    _row(rows, WhisperConfig()).media["audio"] = None
    #: What layers are made of -> the families.
    kinds: dict[str, list[str]] = {}
    for name, row in sorted(rows.items()):
        media = f" ({', '.join(row.media)})" if row.media else ""
        kinds.setdefault(", ".join(row.traits) or "attention", []).append(f"{name}{media}")
    lines = [f"- **{kind}**: {', '.join(names)}" for kind, names in sorted(kinds.items())]
    return f"{_HEAD}{chr(10).join(lines)}\n\n{len(rows)} families.\n{_TAIL}"


def _row(rows: dict[str, Row], config: PretrainedConfig) -> Row:
    row = rows.setdefault(config.model_type, Row())
    row.traits.update(dict.fromkeys(traits(config)))
    return row


if __name__ == "__main__":
    write_or_check(page(), FILE, __doc__, "configurations of the tests")
