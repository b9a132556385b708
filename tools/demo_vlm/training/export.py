"""Writes the trained part in the file format that ships: bf16 safetensors with the names of LLaVA checkpoints on the hub."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from .course import load_state

_NAMES = {"tower.": "vision_tower.vision_model.", "projector.": "multi_modal_projector."}


def export(checkpoint: Path, out: Path) -> int:
    """Write the vision part of a training checkpoint. Returns the file's size in bytes."""
    weights = {}
    for name, tensor in load_state(checkpoint)["vision"].items():
        prefix = next(prefix for prefix in _NAMES if name.startswith(prefix))
        weights[_NAMES[prefix] + name.removeprefix(prefix)] = tensor.to(torch.bfloat16).contiguous()
    save_file(weights, out, metadata={"format": "pt"})
    # safetensors creates the file readable only by its owner.
    out.chmod(0o644)
    return out.stat().st_size
