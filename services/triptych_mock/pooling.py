"""Embed, Score, Classify: numbers that depend on the texts alone."""

from __future__ import annotations

import hashlib
import math
from array import array
from collections.abc import Sequence

from triptych.errors import InvalidRequestError
from triptych.mock.v1 import mock_pb2
from triptych.v1 import common_pb2, generation_pb2

from triptych_mock.script import find_script, last_text
from triptych_mock.vocabulary import words

DIMENSIONS = 8
LABELS = ("negative", "neutral", "positive")
Script = mock_pb2.Script | None


def vector(text: str, dimensions: int = DIMENSIONS) -> list[float]:
    """A vector of a text: its sha256, in [-1, 1)."""
    digest = hashlib.sha256(text.encode()).digest()
    return [digest[index % len(digest)] / 128 - 1 for index in range(dimensions)]


def embedded(request: generation_pb2.EmbedRequest) -> tuple[generation_pb2.EmbedResponse, Script]:
    """One vector for each input, or for each of its tokens."""
    texts = _texts(request.inputs, "inputs")
    dimensions = request.dimensions or DIMENSIONS
    response = generation_pb2.EmbedResponse(usage=_usage(texts))
    per_token = request.task == common_pb2.TASK_TOKEN_EMBED
    for text in texts:
        vectors = [vector(word, dimensions) for word in words(text)] if per_token else [vector(text, dimensions)]
        if request.normalize:
            vectors = [_unit(values) for values in vectors]
        response.embeddings.add(values=[value for values in vectors for value in values], num_vectors=len(vectors))
    if request.packed:
        _pack(response, dimensions)
    return response, _script(texts)


def _pack(response: generation_pb2.EmbedResponse, dimensions: int) -> None:
    numbers = [embedding.num_vectors for embedding in response.embeddings]
    values = array("f", [value for embedding in response.embeddings for value in embedding.values])
    response.packed.CopyFrom(
        common_pb2.Tensor(dtype=common_pb2.DATA_TYPE_FLOAT32, shape=[sum(numbers), dimensions], inline=values.tobytes())
    )
    response.packed_vectors.extend(numbers)
    del response.embeddings[:]


def scored(request: generation_pb2.ScoreRequest) -> tuple[generation_pb2.ScoreResponse, Script]:
    """The share of words that query and document have in common."""
    queries, documents = _texts(request.queries, "queries"), _texts(request.documents, "documents")
    if len(queries) not in (1, len(documents)):
        raise InvalidRequestError(
            f"queries must be 1 or as many as documents ({len(documents)}); given: {len(queries)}",
            field="queries",
            limit=len(documents),
            value=len(queries),
        )
    pairs = zip(queries * len(documents) if len(queries) == 1 else queries, documents, strict=True)
    scores = [_overlap(query, document) for query, document in pairs]
    return generation_pb2.ScoreResponse(scores=scores, usage=_usage([*queries, *documents])), _script([*queries, *documents])


def classified(request: generation_pb2.ClassifyRequest) -> tuple[generation_pb2.ClassifyResponse, Script]:
    """Values of three labels, which sum to 1."""
    texts = _texts(request.inputs, "inputs")
    response = generation_pb2.ClassifyResponse(labels=LABELS, usage=_usage(texts))
    for text in texts:
        weights = [1 + value for value in vector(text, len(LABELS))]
        response.classifications.add(values=[weight / (sum(weights) or 1) for weight in weights])
    return response, _script(texts)


def _texts(inputs: Sequence[generation_pb2.EmbedInput], field: str) -> list[str]:
    if not inputs:
        raise InvalidRequestError(f"{field} must not be empty", field=field, limit=1, value=0)
    return [last_text(item.messages.messages) if item.HasField("messages") else item.text for item in inputs]


def _script(texts: Sequence[str]) -> Script:
    return find_script(texts[0])


def _usage(texts: Sequence[str]) -> common_pb2.Usage:
    return common_pb2.Usage(prompt_tokens=sum(len(words(text)) for text in texts))


def _overlap(query: str, document: str) -> float:
    first, second = set(query.lower().split()), set(document.lower().split())
    return len(first & second) / (len(first | second) or 1)


def _unit(values: Sequence[float]) -> list[float]:
    length = math.sqrt(sum(value * value for value in values)) or 1
    return [value / length for value in values]
