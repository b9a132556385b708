"""What clients make of answers: objects of a class that describes itself by a JSON schema, and documents by their scores."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, TypeVar

from triptych.errors import InvalidRequestError
from triptych.v1 import common_pb2, generation_pb2


class SchemaModel(Protocol):
    """What is needed of a class; pydantic's models have it."""

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]: ...
    @classmethod
    def model_validate_json(cls, json_data: str) -> Self: ...


ParsedT = TypeVar("ParsedT", bound=SchemaModel)


@dataclass(frozen=True)
class Parsed(Generic[ParsedT]):
    """An answer, and what its text says."""

    value: ParsedT
    response: generation_pb2.ChatResponse


class IncompleteAnswerError(ValueError):
    """The answer has no complete text: it was cut, or is a call of a tool. `response` is the answer."""

    def __init__(self, response: generation_pb2.ChatResponse) -> None:
        choice = response.choices[0] if response.choices else generation_pb2.Choice()
        reason = common_pb2.FinishReason.Name(choice.finish_reason).removeprefix("FINISH_REASON_").lower()
        super().__init__(f"the answer is incomplete: it ended with {reason} after {len(choice.text)} characters")
        self.response = response


def constrained(request: generation_pb2.ChatRequest, response_type: type[SchemaModel]) -> generation_pb2.ChatRequest:
    """The request with the schema as its constraint, in a new message. Raises InvalidRequestError if it has another constraint."""
    if request.options.HasField("constraint"):
        raise InvalidRequestError("response_type: the request has a constraint already", field="response_type")
    result = generation_pb2.ChatRequest()
    result.CopyFrom(request)
    result.options.constraint.json_schema = json.dumps(response_type.model_json_schema())
    return result


def parsed(response: generation_pb2.ChatResponse, response_type: type[ParsedT]) -> Parsed[ParsedT]:
    """The object that an answer's first choice describes. Raises IncompleteAnswerError."""
    choice = response.choices[0] if response.choices else generation_pb2.Choice()
    if choice.finish_reason != common_pb2.FINISH_REASON_STOP or not choice.text:
        raise IncompleteAnswerError(response)
    return Parsed(response_type.model_validate_json(choice.text), response)


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
