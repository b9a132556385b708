"""Texts for the benchmarks of embeddings."""

from __future__ import annotations

import random

_WORDS = ("the", "of", "and", "to", "in", "a", "is", "that", "for", "it", "as", "was", "with", "be", "by", "on", "not", "he", "his")


def texts(count: int, fewest: int, most: int) -> list[str]:
    """Texts of random words and lengths; the same ones each time."""
    dice = random.Random(0)
    return [" ".join(dice.choices(_WORDS, k=dice.randint(fewest, most))) for _ in range(count)]
