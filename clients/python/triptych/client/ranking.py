"""Documents in the order of their scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from triptych.errors import InvalidRequestError
from triptych.v1 import generation_pb2


@dataclass(frozen=True, slots=True)
class RankedDocument:
    """One document of `rerank`."""

    index: int
    """Place in the documents that were given."""
    score: float
    """How well it fits the query; the higher, the better."""
    document: Any
    """The document, as it was given."""


def ranked(response: generation_pb2.ScoreResponse, documents: Sequence[Any], top_n: int | None) -> list[RankedDocument]:
    """The best first; equal scores in the order of the documents. Raises InvalidRequestError for a negative `top_n`."""
    if top_n is not None and top_n < 0:
        raise InvalidRequestError(f"top_n is {top_n}, which is negative", field="top_n", limit=0, value=top_n)
    best = sorted(range(len(documents)), key=lambda index: -response.scores[index])[:top_n]
    return [RankedDocument(index, response.scores[index], documents[index]) for index in best]
