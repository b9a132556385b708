"""Answers and errors of Ollama's API. The models are for the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, Field

from triptych_gateway.wire.errors import ApiError
from triptych_gateway.wire.schema import optional


class OllamaErrorResponse(BaseModel):
    """The body of every error, and the last line of a stream that failed."""

    error: str


class OllamaTokenLogprob(BaseModel):
    """Log probability of a token."""

    token: str
    logprob: float
    bytes: list[int]


class OllamaLogprob(OllamaTokenLogprob):
    """An output token, and its likeliest alternatives."""

    top_logprobs: list[OllamaTokenLogprob]


class OllamaCalledFunction(BaseModel):
    """The function of a tool call."""

    index: int
    name: str
    arguments: Annotated[
        dict[str, Any],
        Field(description="If num_predict cut them: as far as they go; if they are no JSON object: empty."),
    ]


class OllamaCall(BaseModel):
    """A tool that the model calls."""

    id: str
    function: OllamaCalledFunction


class OllamaAnswerMessage(BaseModel):
    """The message that the model generated, or a piece of it."""

    role: Literal["assistant"]
    content: str
    thinking: str | None = optional("What the model thought, if it did.")
    tool_calls: list[OllamaCall] | None = optional("Present when the model calls tools.")


class _Answer(BaseModel):
    model: Annotated[str, Field(description="As the request named it.")]
    created_at: str
    done: Annotated[bool, Field(description="Whether this is the last line.")]
    done_reason: Literal["stop", "length", "load", "unload"] | None = optional("On the last line.")
    total_duration: int | None = optional("Since the request came, in nanoseconds, as all times here. On the last line.")
    load_duration: int | None = optional("What is left of it: waiting for a model that slept, and the way to it.")
    prompt_eval_count: int | None = optional("Tokens of the prompt.")
    prompt_eval_duration: int | None = optional("From the first work on the prompt to the first token.")
    eval_count: int | None = optional("Tokens of the answer.")
    eval_duration: int | None = optional("From the first to the last token.")
    logprobs: list[OllamaLogprob] | None = optional("Present when logprobs was given.")


class ChatAnswer(_Answer):
    """The answer, or a line of it."""

    message: OllamaAnswerMessage


class GenerateAnswer(_Answer):
    """The answer, or a line of it."""

    response: str
    thinking: str | None = optional("What the model thought, if it did.")


class EmbedAnswer(BaseModel):
    """The vectors, in the order of the inputs."""

    model: str
    embeddings: list[list[float]]
    total_duration: Annotated[int, Field(description="Since the request came, in nanoseconds.")]
    prompt_eval_count: Annotated[int, Field(description="Tokens of all inputs.")]


class EmbeddingAnswer(BaseModel):
    """The vector."""

    embedding: list[float]


def error_body(error: ApiError, request_id: str) -> bytes:
    """The JSON body. Clients tell an unknown model by Ollama's own words."""
    return orjson.dumps({"error": f'model "{error.model}" not found' if error.model else error.message})
