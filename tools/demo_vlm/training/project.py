"""Last stage: the projector learns to turn the tower's features into the code that the language model reads."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.nn.functional import mse_loss

from ..dataset.batches import scene_batch
from ..dataset.stencils import Stencils
from .codebook import Codebook
from .course import Course, load_modules, load_state
from .descent import Descent
from .pretrain import examine, new_vision, slot_loss
from .vision import FIRST_SLOT

_BATCH_SIZE = 64
_TOWER_RATE, _PROJECTOR_RATE = 1e-3, 3e-3
_DISTANCE_WEIGHT, _SLOTS_WEIGHT = 20.0, 4.0
_SAVE_EVERY = 50


def project(directory: Path, stencils: Stencils, num_steps: int) -> None:
    """Regress the code from images. The tower is trained too: after pre-training, facts are only a small part of its output."""
    codebook = Codebook().requires_grad_(False)
    load_modules(load_state(directory / "codebook.pt"), codebook=codebook)
    vision, heads = new_vision()
    descent = Descent({vision.tower: _TOWER_RATE, vision.projector: _PROJECTOR_RATE}, {heads: _TOWER_RATE}, num_steps)
    course = Course(directory / "project.pt", descent, _SAVE_EVERY, vision=vision, heads=heads)
    if course.is_new:
        load_modules(load_state(directory / "pretrain.pt"), vision=vision, heads=heads)
    for step in course:
        batch = scene_batch(stencils, f"train:project:{step}", _BATCH_SIZE)
        features = vision.fact_features(vision.cell_features(batch.pixels))
        distance = _distance(vision.projector(features), codebook(batch.facts))
        slots = slot_loss(heads.slot_logits(features), batch.facts)
        descent.step(_DISTANCE_WEIGHT * distance + _SLOTS_WEIGHT * slots, step)
        course.note(distance=distance, slots=slots)
    examine("project", vision, heads)


def _distance(found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Mean squared distance in units of the code's own variance. The free tokens are all alike and learned at once."""
    return mse_loss(found, wanted) / wanted[:, FIRST_SLOT:].var()
