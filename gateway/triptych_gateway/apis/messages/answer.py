"""Answers and errors of Anthropic's API. The models are for the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, Field

from triptych_gateway.wire.errors import ApiError
from triptych_gateway.wire.schema import optional


class AnthropicErrorDetail(BaseModel):
    """The error."""

    type: str
    message: str
    details: dict[str, Any] | None = optional("Present where clients act on an error by its error_code.")


class AnthropicErrorResponse(BaseModel):
    """The body of every error."""

    type: Literal["error"]
    error: AnthropicErrorDetail
    request_id: str


class TextAnswer(BaseModel):
    """Text."""

    type: Literal["text"]
    text: str


class ThinkingAnswer(BaseModel):
    """What the model thought before it answered."""

    type: Literal["thinking"]
    thinking: str
    signature: Annotated[str, Field(description="Send it back as it is.")]


class ToolUseAnswer(BaseModel):
    """A tool call."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: Annotated[
        dict[str, Any],
        Field(description="The arguments. If max_tokens cut them: as far as they go; if they are no JSON object: empty."),
    ]


class OutputTokensDetails(BaseModel):
    """The tokens of the answer, by kind."""

    thinking_tokens: int


class MessageUsage(BaseModel):
    """Token counts."""

    input_tokens: Annotated[int, Field(description="Of the prompt, without those from the prefix cache.")]
    cache_creation_input_tokens: Annotated[int, Field(description="Always 0: nothing is charged for what the cache keeps.")]
    cache_read_input_tokens: Annotated[int, Field(description="Of the prompt, from the prefix cache.")]
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    service_tier: Literal["standard"]


class MessageAnswer(BaseModel):
    """The answer when stream is not set."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[Annotated[TextAnswer | ThinkingAnswer | ToolUseAnswer, Field(discriminator="type")]]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
    stop_sequence: str | None
    usage: MessageUsage


class TokenCount(BaseModel):
    """Number of tokens of a prompt."""

    input_tokens: int


_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def error_body(error: ApiError, request_id: str) -> bytes:
    """The JSON body. It has no field for the name of the field at fault; the message names it."""
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    # Clients tell an overflow by these words, which Anthropic's own message begins with.
    opening = "prompt is too long: " if error.code == "context_length_exceeded" else ""
    detail: dict[str, Any] = {"type": kind, "message": opening + error.message}
    if error.param == "thread":
        # The client's tool runner asks for a thread that the server keeps. With this code it goes on without one.
        detail["details"] = {"error_code": "thread_unsupported_request"}
    return orjson.dumps({"type": "error", "error": detail, "request_id": request_id})
