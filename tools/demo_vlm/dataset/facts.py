"""Facts about a scene, as a fixed list of slots with one value each: the targets of pre-training."""

from __future__ import annotations

from dataclasses import dataclass

from .scenes import COLOURS, DIGITS, MAX_COUNT, POSITIONS, SHAPES, Scene

NONE = "none"
MIXED = "mixed"
_COUNTS = tuple(str(count) for count in range(MAX_COUNT + 1))
#: The values of each attribute. `none`: the subject is absent; `mixed`: there is more than one answer.
ATTRIBUTES = {
    "count": _COUNTS,
    "colour": (NONE, MIXED, *COLOURS),
    "position": (NONE, MIXED, *POSITIONS),
    "digit": (NONE, *DIGITS),
    "shape": (NONE, MIXED, *SHAPES),
    "presence": ("no", "yes"),
}


@dataclass(frozen=True)
class Slot:
    """One fact: an attribute of a subject, e.g. `the colour of the circle` or `the shape of what is red`."""

    subject: str
    attribute: str

    @property
    def values(self) -> tuple[str, ...]:
        return ATTRIBUTES[self.attribute]


SLOTS = (
    *(Slot(shape, attribute) for shape in SHAPES for attribute in ("count", "colour", "position", "presence")),
    *(Slot(colour, "shape") for colour in COLOURS),
    Slot("shapes", "count"),
    Slot("shapes", "colour"),
    Slot("shapes", "shape"),
    Slot("digit", "digit"),
    Slot("digit", "colour"),
)


def fact_values(scene: Scene) -> list[int]:
    """For each of SLOTS, the index of its value in the scene."""
    return [slot.values.index(_value(slot, scene)) for slot in SLOTS]


def _value(slot: Slot, scene: Scene) -> str:
    if slot.subject == "shapes":
        items = scene.shapes
    elif slot.subject == "digit":
        items = (scene.digit,) if scene.digit else ()
    elif slot.attribute == "shape":
        items = tuple(item for item in scene.shapes if item.colour == slot.subject)
    else:
        items = scene.of_kind(slot.subject)
    if slot.attribute == "count":
        return str(len(items))
    if slot.attribute == "presence":
        return "yes" if items else "no"
    if slot.attribute == "position":
        seen = {item.position for item in items}
    elif slot.attribute == "colour":
        seen = {item.colour for item in items}
    else:
        seen = {item.kind for item in items}
    if not seen:
        return NONE
    return seen.pop() if len(seen) == 1 and not (slot.attribute == "position" and len(items) > 1) else MIXED


def cell_labels(scene: Scene) -> tuple[list[int], list[int]]:
    """The content of each cell of the three by three grid, row by row.

    Returns:
        kinds (0: nothing, then SHAPES, then DIGITS) and colours (0: nothing, then COLOURS).
    """
    kinds, colours = ([0] * len(POSITIONS) for _ in range(2))
    for item in scene.items:
        cell = POSITIONS.index(item.position)
        kinds[cell] = 1 + (SHAPES + DIGITS).index(item.kind)
        colours[cell] = 1 + COLOURS.index(item.colour)
    return kinds, colours
