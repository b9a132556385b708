"""The pictures of examples/: scenes that are written down rather than sampled."""

from __future__ import annotations

import random
from pathlib import Path

from .drawing import draw
from .scenes import Item, Scene

_EXAMPLES = {
    "circle.png": Scene((Item("circle", "red", 0.5, 0.5, 0.4),), dark=False),
    "three-shapes.png": Scene(
        (
            Item("square", "blue", 0.19, 0.5, 0.28),
            Item("star", "yellow", 0.81, 0.5, 0.3),
            Item("triangle", "green", 0.5, 0.19, 0.28),
        ),
        dark=True,
    ),
    "four-stars.jpeg": Scene(
        tuple(
            Item("star", "purple", x, y, 0.24, turn)
            for x, y, turn in ((0.2, 0.2, 5), (0.8, 0.22, -8), (0.5, 0.5, 0), (0.22, 0.8, 12))
        ),
        dark=False,
    ),
    "seven.jpeg": Scene((Item("7", "orange", 0.5, 0.5, 0.6),), dark=False),
}
_SIZE = 320


def write_examples(directory: Path) -> None:
    """Write each picture below its name."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, scene in _EXAMPLES.items():
        draw(scene, random.Random(f"example:{name}"), (_SIZE,)).save(directory / name)
