"""The answers of /v1/responses, for the OpenAPI document. The encoder writes them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from triptych_gateway.schemas.answers import TriptychExtension
from triptych_gateway.schemas.common import optional


class OutputTextPart(BaseModel):
    """The text of a message."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[Any]


class OutputMessage(BaseModel):
    """A message of the assistant."""

    id: str
    type: Literal["message"]
    status: Literal["in_progress", "completed", "incomplete"]
    role: Literal["assistant"]
    content: list[OutputTextPart]
    phase: Literal["commentary", "final_answer"] | None = optional("commentary before a function call, else final_answer.")


class OutputFunctionCall(BaseModel):
    """A call of a function."""

    id: str
    type: Literal["function_call"]
    status: Literal["in_progress", "completed", "incomplete"]
    call_id: str
    name: str
    arguments: Annotated[str, Field(description="JSON, unless the response is incomplete.")]


class ReasoningPart(BaseModel):
    """A part of reasoning, or of its summary."""

    type: Literal["reasoning_text", "summary_text"]
    text: str


class ReasoningOutput(BaseModel):
    """What the model thought."""

    id: str
    type: Literal["reasoning"]
    status: Literal["in_progress", "completed", "incomplete"]
    summary: list[ReasoningPart]
    content: list[ReasoningPart]
    encrypted_content: str | None = optional("The text in an opaque form; present if it was asked for.")


class CompactionOutput(BaseModel):
    """A conversation in short."""

    id: str
    type: Literal["compaction"]
    encrypted_content: str


class InputDetails(BaseModel):
    """The tokens of the input, by kind."""

    cached_tokens: int
    cache_write_tokens: int


class OutputDetails(BaseModel):
    """The tokens of the output, by kind."""

    reasoning_tokens: int


class ResponseUsage(BaseModel):
    """Token counts of a response."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseFailure(BaseModel):
    """Why a response failed."""

    code: str
    message: str


class IncompleteDetails(BaseModel):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"]


class ResponseObject(BaseModel):
    """A response. Options of the request that were left out have their defaults."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    background: bool
    error: ResponseFailure | None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputMessage | OutputFunctionCall | ReasoningOutput]
    parallel_tool_calls: bool
    presence_penalty: float
    frequency_penalty: float
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: dict[str, Any]
    safety_identifier: str | None
    service_tier: Literal["default"]
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: Any
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["auto", "disabled"]
    usage: ResponseUsage | None
    user: str | None
    triptych: TriptychExtension | None = None


class ItemList(BaseModel):
    """A page of items."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedResponse(BaseModel):
    """A response was deleted."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


class CompactedResponse(BaseModel):
    """A conversation in short."""

    id: str
    object: Literal["response.compaction"]
    created_at: int
    output: list[CompactionOutput]
    usage: ResponseUsage
