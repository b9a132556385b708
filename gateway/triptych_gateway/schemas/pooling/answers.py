"""Answers of the routes that generate nothing, for the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from triptych_gateway.schemas.common import optional


class PoolingUsage(BaseModel):
    """Tokens of all inputs."""

    prompt_tokens: int
    total_tokens: int


class Embedding(BaseModel):
    """One vector."""

    object: Literal["embedding"]
    index: int
    embedding: Annotated[list[float] | str, Field(description="Numbers, or base64 of float32.")]


class EmbeddingList(BaseModel):
    """The vectors, in the order of the inputs."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: PoolingUsage


class Pooled(BaseModel):
    """What was pooled of one input."""

    object: Literal["pooling"]
    index: int
    data: Annotated[list[float] | list[list[float]] | str, Field(description="A vector, a vector per token, or base64 of float32.")]


class PooledList(BaseModel):
    """In the order of the inputs."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Pooled]
    usage: PoolingUsage


class Classification(BaseModel):
    """The likeliest label of an input, and the values of all labels."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class ClassificationList(BaseModel):
    """In the order of the inputs."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Classification]
    usage: PoolingUsage


class Score(BaseModel):
    """How well a pair fits together."""

    object: Literal["score"]
    index: int
    score: float


class ScoreList(BaseModel):
    """In the order of the pairs."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Score]
    usage: PoolingUsage


class RankedDocument(BaseModel):
    """A document."""

    text: str


class Ranked(BaseModel):
    """A document's place among the others."""

    index: Annotated[int, Field(description="Of the document in the request.")]
    relevance_score: float
    document: RankedDocument | None = optional("Present when return_documents is true.")


class Ranking(BaseModel):
    """Documents, the most relevant first."""

    id: str
    model: str
    results: list[Ranked]
    usage: PoolingUsage
