"""Batches by name: the name determines the content, so that an interrupted run continues with the same batches."""

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
    """Scenes and their training targets.

    Attributes:
        pixels: float32 [scenes, 3, size, size].
        facts: int64 [scenes, slots]; None for crowds, where some slots have no value.
        patches: int64 [scenes, 2, patches], kind and colour of the item in each patch's cell.
        questions: all possible questions about each scene.
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
    """Scenes drawn like those of the examination, to measure the progress of a stage."""
    rng = random.Random(name)
    scenes = [sample_scene(rng) for _ in range(size)]
    return _scene_batch(scenes, torch.stack([to_pixels(draw(scene, rng)) for scene in scenes]), rng)


def _scene_batch(scenes: list[Scene], pixels: torch.Tensor, rng: random.Random) -> Batch:
    facts = torch.tensor([fact_values(scene) for scene in scenes])
    return Batch(pixels, facts, _patch_labels(scenes), [questions(scene, rng) for scene in scenes])


def _patch_labels(scenes: list[Scene]) -> torch.Tensor:
    return torch.tensor([cell_labels(scene) for scene in scenes])[:, :, CELL_OF_PATCH]
