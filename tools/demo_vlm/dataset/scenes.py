"""Scenes of simple shapes and digits as data: the items and their positions. Module `drawing` draws them."""

from __future__ import annotations

import random
from dataclasses import dataclass

SHAPES = ("circle", "square", "triangle", "star", "cross")
DIGITS = tuple("0123456789")
COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "black")
#: The cells of a three by three grid, row by row.
POSITIONS = ("top left", "top", "top right", "left", "center", "right", "bottom left", "bottom", "bottom right")
MAX_COUNT = 5

_CELL_CENTRES = (1 / 6, 1 / 2, 5 / 6)
#: Half of the largest diameter plus this is less than half a cell, so no item reaches into another cell.
_CELL_JITTER = 0.02
_DIAMETERS = (0.2, 0.29)


@dataclass(frozen=True)
class Item:
    """A shape or a digit.

    Attributes:
        kind: one of SHAPES or DIGITS.
        x, y: the centre, as fractions of the image's width and height.
        size: the diameter, as a fraction of the image's shorter edge.
    """

    kind: str
    colour: str
    x: float
    y: float
    size: float
    rotation_degrees: float = 0.0

    @property
    def position(self) -> str:
        """The cell of the grid that contains the centre."""
        return POSITIONS[3 * min(2, int(self.y * 3)) + min(2, int(self.x * 3))]


@dataclass(frozen=True)
class Scene:
    """The content of an image. `dark`: the background is dark, so no item is black."""

    items: tuple[Item, ...]
    dark: bool

    @property
    def shapes(self) -> tuple[Item, ...]:
        return tuple(item for item in self.items if item.kind in SHAPES)

    @property
    def digit(self) -> Item | None:
        return next((item for item in self.items if item.kind in DIGITS), None)

    def of_kind(self, kind: str) -> tuple[Item, ...]:
        return tuple(item for item in self.items if item.kind == kind)


def sample_scene(rng: random.Random) -> Scene:
    """A random scene: different shapes in different places, several similar shapes, or one digit."""
    dark = rng.random() < 0.2
    sample = rng.choices((_few_different, _several_alike, _one_digit), weights=(35, 33, 32))[0]
    return Scene(sample(rng, _colours_on(dark)), dark)


def sample_crowd(rng: random.Random) -> Scene:
    """A random item in almost every cell. It suits no question, but gives much to learn from."""
    dark = rng.random() < 0.2
    colours = _colours_on(dark)
    kinds = rng.choices((DIGITS, SHAPES, ("",)), weights=(50, 35, 15), k=len(POSITIONS))
    return Scene(
        tuple(place(rng, rng.choice(kind), rng.choice(colours), cell) for cell, kind in enumerate(kinds) if kind != ("",)), dark
    )


def _colours_on(dark: bool) -> list[str]:
    return [colour for colour in COLOURS if not (dark and colour == "black")]


def _few_different(rng: random.Random, colours: list[str]) -> tuple[Item, ...]:
    """One to four shapes, no two of one kind or colour."""
    count = rng.choices((1, 2, 3, 4), weights=(25, 30, 30, 15))[0]
    kinds, colours = rng.sample(SHAPES, count), rng.sample(colours, count)
    return tuple(
        place(rng, kind, colour, cell) for kind, colour, cell in zip(kinds, colours, rng.sample(range(9), count), strict=True)
    )


def _several_alike(rng: random.Random, colours: list[str]) -> tuple[Item, ...]:
    """Up to MAX_COUNT shapes of one or two kinds, each kind of one colour or of any."""
    count = rng.randint(1, MAX_COUNT)
    others = rng.randint(0, MAX_COUNT - count) if rng.random() < 0.5 else 0
    kind, other = rng.sample(SHAPES, 2)
    kinds = [kind] * count + [other] * others
    colour_of = {kind: rng.choice(colours), other: rng.choice(colours)}
    mixed = rng.random() < 0.3
    return tuple(
        place(rng, kind, rng.choice(colours) if mixed else colour_of[kind], cell)
        for kind, cell in zip(kinds, rng.sample(range(9), count + others), strict=True)
    )


def _one_digit(rng: random.Random, colours: list[str]) -> tuple[Item, ...]:
    """A digit anywhere, upright except for a slight rotation."""
    return (place(rng, rng.choice(DIGITS), rng.choice(colours), rng.randrange(9)),)


def place(rng: random.Random, kind: str, colour: str, cell: int) -> Item:
    """An item inside a cell, at a random offset that does not leave the cell."""
    x = _CELL_CENTRES[cell % 3] + rng.uniform(-_CELL_JITTER, _CELL_JITTER)
    y = _CELL_CENTRES[cell // 3] + rng.uniform(-_CELL_JITTER, _CELL_JITTER)
    turn = {"circle": 0, "triangle": 12, "square": 10, "star": 18, "cross": 10}.get(kind, 8)
    return Item(kind, colour, x, y, rng.uniform(*_DIAMETERS), rng.uniform(-turn, turn))
