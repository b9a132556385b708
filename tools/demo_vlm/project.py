"""Fourth stage: the projector learns to turn what the tower found into the code that the language model reads."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.nn.functional import mse_loss

from .codebook import Codebook
from .course import Course, load_modules, load_state
from .descent import Descent
from .pretrain import examine, new_vision, see
from .stencils import Stencils
from .vision import FIRST_SLOT

_TOWER_RATE, _PROJECTOR_RATE = 5e-4, 2e-3
_DISTANCE_WEIGHT = 5.0
_SAVE_EVERY = 100


def project(directory: Path, stencils: Stencils, num_steps: int) -> None:
    """Regress the code from pictures, the tower still learning to see."""
    codebook = Codebook().requires_grad_(False)
    load_modules(load_state(directory / "codebook.pt"), codebook=codebook)
    vision, heads = new_vision()
    descent = Descent({vision.tower: _TOWER_RATE, vision.projector: _PROJECTOR_RATE}, {heads: _TOWER_RATE}, num_steps)
    course = Course(directory / "project.pt", descent, _SAVE_EVERY, vision=vision, heads=heads)
    if course.is_new:
        load_modules(load_state(directory / "pretrain.pt"), vision=vision, heads=heads)
    for step in course:
        seen = see(vision, heads, stencils, f"train:project:{step}")
        distance = _distance(vision.projector(seen.fact_features), codebook(seen.facts))
        descent.step(_DISTANCE_WEIGHT * distance + seen.loss, step)
        course.note(distance=distance, slots=seen.slot_loss, patches=seen.patch_loss)
    examine("project", vision, heads)


def _distance(found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """In units of the code's own variance; the free tokens are all alike and learned at once."""
    return mse_loss(found, wanted) / wanted[:, FIRST_SLOT:].var()
