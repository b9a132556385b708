"""Scenes by number as training examples. A split and a number make a scene, so no split shares one with another."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset

from .drawing import draw
from .facts import fact_values, patch_labels
from .questions import Question, questions
from .scenes import Scene, sample_crowd, sample_scene

IMAGE_SIZE = 112
PATCH_SIZE = 16
GRID = IMAGE_SIZE // PATCH_SIZE


def make_example(split: str, number: int) -> tuple[Scene, Image.Image, list[Question]]:
    """The scene of that number, a picture of it, and what can be asked about it."""
    rng = random.Random(f"{split}:{number}")
    scene = sample_scene(rng)
    return scene, draw(scene, rng), questions(scene, rng)


def to_pixels(image: Image.Image) -> torch.Tensor:
    """As SigLIP's image processor does it: bicubic, to -1 ... 1; float32 [3, IMAGE_SIZE, IMAGE_SIZE]."""
    small = image.resize((IMAGE_SIZE, IMAGE_SIZE), Image.Resampling.BICUBIC)
    return torch.from_numpy(np.asarray(small, dtype=np.float32).transpose(2, 0, 1) / 127.5 - 1)


class SceneDataset(IterableDataset):
    """Scenes from a number on, for ever: pixels, facts [slots], patch labels [4, patches] and questions."""

    def __init__(self, split: str, start: int) -> None:
        self._split, self._start = split, start

    def __iter__(self) -> Iterator[dict[str, Any]]:
        # Torch would use every core in this process too, for nothing.
        torch.set_num_threads(1)
        for number in itertools.count(self._start):
            scene, image, asked = make_example(self._split, number)
            yield _seen(scene, image) | {"facts": torch.tensor(fact_values(scene)), "questions": asked}


class CrowdDataset(SceneDataset):
    """Crowds, and every third time a scene: pixels and patch labels [4, patches]."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        torch.set_num_threads(1)
        for number in itertools.count(self._start):
            rng = random.Random(f"{self._split}:crowd:{number}")
            scene = sample_crowd(rng) if number % 3 else sample_scene(rng)
            yield _seen(scene, draw(scene, rng))


def _seen(scene: Scene, image: Image.Image) -> dict[str, Any]:
    return {"pixels": to_pixels(image), "patches": torch.tensor(patch_labels(scene, GRID))}


def batches(dataset: SceneDataset, batch_size: int) -> Iterator[dict[str, Any]]:
    """Batches of scenes, drawn by a process of their own. Questions come as a list of lists."""
    return iter(DataLoader(dataset, batch_size=batch_size, num_workers=1, prefetch_factor=8, collate_fn=_collate))


def _collate(examples: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        key: [example[key] for example in examples] if key == "questions" else torch.stack([example[key] for example in examples])
        for key in examples[0]
    }
