"""Batches by name: the name decides what is in one, so that an interrupted run goes on with what it would have seen."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch

from .drawing import draw
from .facts import cell_labels, fact_values
from .geometry import CELL_OF_PATCH, to_pixels
from .questions import Question, questions
from .scenes import Scene, sample_crowd, sample_scene
from .stencils import Stencils


@dataclass(frozen=True)
class Batch:
    """Scenes and what is to be learned of them.

    Attributes:
        pixels: float32 [scenes, 3, size, size].
        facts: int64 [scenes, slots]; of crowds, for which some have no value, None.
        patches: int64 [scenes, 2, patches], kind and colour of what stands in each patch's cell.
        questions: all that can be asked about each scene.
    """

    pixels: torch.Tensor
    facts: torch.Tensor | None
    patches: torch.Tensor
    questions: list[list[Question]]


def crowd_batch(stencils: Stencils, name: str, size: int) -> Batch:
    rng = random.Random(name)
    scenes = [sample_crowd(rng) for _ in range(size)]
    return Batch(stencils.compose(scenes, rng), None, _patch_labels(scenes), [])


def scene_batch(stencils: Stencils, name: str, size: int) -> Batch:
    rng = random.Random(name)
    scenes = [sample_scene(rng) for _ in range(size)]
    return _scene_batch(scenes, stencils.compose(scenes, rng), rng)


def drawn_batch(name: str, size: int) -> Batch:
    """Scenes drawn as those of the examination are: what a stage's progress is measured with."""
    rng = random.Random(name)
    scenes = [sample_scene(rng) for _ in range(size)]
    return _scene_batch(scenes, torch.stack([to_pixels(draw(scene, rng)) for scene in scenes]), rng)


def _scene_batch(scenes: list[Scene], pixels: torch.Tensor, rng: random.Random) -> Batch:
    facts = torch.tensor([fact_values(scene) for scene in scenes])
    return Batch(pixels, facts, _patch_labels(scenes), [questions(scene, rng) for scene in scenes])


def _patch_labels(scenes: list[Scene]) -> torch.Tensor:
    return torch.tensor([cell_labels(scene) for scene in scenes])[:, :, CELL_OF_PATCH]
