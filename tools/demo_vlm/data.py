"""Scenes by number as training examples. A split and a number make a scene, so no split shares one with another."""

from __future__ import annotations

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
from .scenes import Scene, sample_scene

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
    """Scenes from a number on, for ever: pixels, facts [slots] and patch labels [3, patches], and the questions if wanted."""

    def __init__(self, split: str, start: int, with_questions: bool = False) -> None:
        self._split, self._start, self._with_questions = split, start, with_questions

    def __iter__(self) -> Iterator[dict[str, Any]]:
        # Torch would use every core in this process too, for nothing.
        torch.set_num_threads(1)
        number = self._start
        while True:
            scene, image, asked = make_example(self._split, number)
            example = {
                "pixels": to_pixels(image),
                "facts": torch.tensor(fact_values(scene)),
                "patches": torch.tensor(patch_labels(scene, GRID)),
            }
            yield example | ({"questions": asked} if self._with_questions else {})
            number += 1


def batches(split: str, start: int, batch_size: int, with_questions: bool = False) -> Iterator[dict[str, Any]]:
    """Batches of scenes, drawn by a process of their own. Questions come as a list of lists."""
    loader = DataLoader(
        SceneDataset(split, start, with_questions), batch_size=batch_size, num_workers=1, prefetch_factor=8, collate_fn=_collate
    )
    return iter(loader)


def _collate(examples: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        key: [example[key] for example in examples] if key == "questions" else torch.stack([example[key] for example in examples])
        for key in examples[0]
    }
