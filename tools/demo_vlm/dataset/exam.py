"""The examination: images that no training run sees, as files of many sizes, with one question each."""

from __future__ import annotations

import io
import random
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from .drawing import draw
from .questions import Question, is_right, questions
from .scenes import sample_scene

_SIZES = (96, 112, 150, 224, 300, 448, 640)


@dataclass(frozen=True)
class ExamItem:
    """An image as PNG or JPEG, and the question about it."""

    number: int
    image: bytes
    media_type: str
    question: Question


def make_exam(count: int, seed: str = "test") -> list[ExamItem]:
    """`count` images, always the same for a seed. Their topics are as equally frequent as the scenes allow.

    Args:
        seed: must not be `train`, which begins the seeds of the training.
    """
    return [_make_item(number, random.Random(f"{seed}:{number}")) for number in range(count)]


def _make_item(number: int, rng: random.Random) -> ExamItem:
    scene = sample_scene(rng)
    picture = draw(scene, rng, _SIZES)
    by_topic = defaultdict(list)
    for question in questions(scene, rng):
        by_topic[question.topic].append(question)
    question = rng.choice(by_topic[rng.choice(sorted(by_topic))])
    file, form = io.BytesIO(), rng.choice(("PNG", "JPEG"))
    picture.save(file, form)
    return ExamItem(number, file.getvalue(), f"image/{form.lower()}", question)


@dataclass(frozen=True)
class ExamResult:
    """Number of right answers by topic."""

    right: dict[str, int]
    asked: dict[str, int]
    mistakes: list[str]

    @property
    def accuracy(self) -> float:
        return sum(self.right.values()) / sum(self.asked.values())

    def lines(self) -> list[str]:
        """Lines for a terminal: the mistakes, then one line per topic, then the total."""
        topics = [f"{topic:>10} {self.right[topic]:>4} of {count}" for topic, count in sorted(self.asked.items())]
        return [
            *self.mistakes,
            *topics,
            f"{'all':>10} {sum(self.right.values()):>4} of {sum(self.asked.values())} = {self.accuracy:.1%}",
        ]


def mark(items: Iterable[ExamItem], answers: Iterable[str]) -> ExamResult:
    """Compare answers with the right ones, ignoring case and punctuation."""
    right: dict[str, int] = defaultdict(int)
    asked: dict[str, int] = defaultdict(int)
    mistakes = []
    for item, answer in zip(items, answers, strict=True):
        topic = item.question.topic
        asked[topic] += 1
        if is_right(item.question, answer):
            right[topic] += 1
        else:
            mistakes.append(f"picture {item.number}: {item.question.text} {item.question.answer!r} expected, {answer!r} answered")
    return ExamResult(right, asked, mistakes)
