"""Questions about a scene with one right answer, and the comparison of answers."""

from __future__ import annotations

import random
import string
from collections.abc import Iterator
from dataclasses import dataclass

from .scenes import COLOURS, SHAPES, Item, Scene


@dataclass(frozen=True)
class Question:
    """A question, its answer, and its topic."""

    topic: str
    text: str
    answer: str


_COLOUR_OF = (
    "What colour is the {0}?",
    "What color is the {0}?",
    "Which colour does the {0} have?",
    "What is the color of the {0}?",
)
_COLOUR_OF_ALL = ("What colour are the {0}?", "What color are the {0}?", "Which color do the {0} have?")
_COLOUR_OF_IT = ("What colour is it?", "What color is the shape?", "What colour is the object?", "Which color do you see?")
_SHAPE_OF = ("Which shape is {0}?", "What shape is the {0} object?", "What is the {0} shape?", "Which object is {0}?")
_SHAPE_OF_IT = ("What shape is it?", "Which shape is this?", "What shape is shown?", "What shape do you see?")
_WHERE = ("Where is the {0}?", "In which part of the picture is the {0}?", "Where in the image is the {0}?")
_COUNT = (
    "How many {0} are there?",
    "How many {0} do you see?",
    "How many {0} are in the picture?",
    "Count the {0}.",
    "How many {0}?",
)
_DIGIT = (
    "Which digit?",
    "Which digit is this?",
    "What digit is shown?",
    "What number is in the picture?",
    "Which digit do you see?",
)
_EXISTS = ("Is there a {0}?", "Is there a {0} in the picture?", "Do you see a {0}?")
#: Positions that one word describes. An item in a corner is at two edges.
_PLACES = ("top", "left", "center", "right", "bottom")


def questions(scene: Scene, rng: random.Random) -> list[Question]:
    """All questions that the scene answers unambiguously, each in one random wording."""
    return [
        Question(topic, rng.choice(wordings).format(*words), answer[0].upper() + answer[1:])
        for topic, wordings, words, answer in _facts(scene, rng)
    ]


def is_right(question: Question, answer: str) -> bool:
    """Whether an answer is right, ignoring case and punctuation."""
    return _normalise(answer) == _normalise(question.answer)


def _normalise(text: str) -> str:
    return " ".join(text.lower().translate(str.maketrans("", "", string.punctuation)).split())


_Fact = tuple[str, tuple[str, ...], tuple[str, ...], str]


def _facts(scene: Scene, rng: random.Random) -> Iterator[_Fact]:
    digit = scene.digit
    if digit is not None:
        yield "digit", _DIGIT, (), digit.kind
        yield "colour", _COLOUR_OF, (rng.choice(("digit", "number")),), digit.colour
    if scene.shapes:
        yield from _shape_facts(scene, rng)
    absent = rng.choice([shape for shape in SHAPES if not scene.of_kind(shape)])
    yield "exists", _EXISTS, (absent,), "no"


def _shape_facts(scene: Scene, rng: random.Random) -> Iterator[_Fact]:
    kinds = list(dict.fromkeys(item.kind for item in scene.shapes))
    for kind in kinds:
        yield from _kind_facts(kind, scene.of_kind(kind))
    for colour in COLOURS:
        coloured = [item for item in scene.shapes if item.colour == colour]
        if len(coloured) == 1 and len(scene.shapes) > 1:
            yield "shape", _SHAPE_OF, (colour,), coloured[0].kind
    if len(scene.shapes) == 1:
        yield "shape", _SHAPE_OF_IT, (), scene.shapes[0].kind
        yield "colour", _COLOUR_OF_IT, (), scene.shapes[0].colour
    yield "count", _COUNT, (rng.choice(("shapes", "objects")),), str(len(scene.shapes))
    yield "exists", _EXISTS, (rng.choice(kinds),), "yes"


def _kind_facts(kind: str, items: tuple[Item, ...]) -> Iterator[_Fact]:
    yield "count", _COUNT, (_plural(kind),), str(len(items))
    colours = {item.colour for item in items}
    if len(items) == 1:
        colour = items[0].colour
        if items[0].position in _PLACES:
            yield "where", _WHERE, (kind,), items[0].position
        yield "colour", _COLOUR_OF, (kind,), colour
    elif len(colours) == 1:
        yield "colour", _COLOUR_OF_ALL, (_plural(kind),), colours.pop()


def _plural(kind: str) -> str:
    return kind + ("es" if kind.endswith("s") else "s")
