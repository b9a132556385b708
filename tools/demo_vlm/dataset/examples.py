"""The images of examples/: scenes that are specified instead of sampled."""

from __future__ import annotations

import random
from pathlib import Path

from .drawing import draw
from .scenes import Item, Scene

_EXAMPLES = {
    "circle.png": Scene((Item("circle", "red", 1 / 2, 1 / 2, 0.29),), dark=False),
    "three-shapes.png": Scene(
        (
            Item("square", "blue", 1 / 6, 1 / 2, 0.28),
            Item("star", "yellow", 5 / 6, 1 / 2, 0.29),
            Item("triangle", "green", 1 / 2, 1 / 6, 0.28),
        ),
        dark=True,
    ),
    "four-squares.jpeg": Scene(
        tuple(Item("square", "purple", x / 6, y / 6, 0.27, turn) for x, y, turn in ((1, 1, 5), (5, 1, -8), (3, 3, 0), (1, 5, 12))),
        dark=False,
    ),
    "seven.jpeg": Scene((Item("7", "orange", 1 / 2, 1 / 2, 0.29),), dark=False),
}
_SIZE = 320


def write_examples(directory: Path) -> None:
    """Write each image under its name."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, scene in _EXAMPLES.items():
        draw(scene, random.Random(f"picture:{name}"), (_SIZE,)).save(directory / name)
