"""The response object: what the client asked for, and what came of it. The models are for the OpenAPI document."""

from __future__ import annotations

import time
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field
from triptych.v1 import common_pb2

from triptych_gateway.apis.responses.schema import ResponseRequest
from triptych_gateway.wire.cost import Cost, TriptychExtension, triptych_json
from triptych_gateway.wire.errors import ApiError
from triptych_gateway.wire.schema import optional


class OutputTextPart(BaseModel):
    """The text of a message."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[Any]


class _OutputItem(BaseModel):
    id: str
    status: Literal["in_progress", "completed", "incomplete"]


class OutputMessage(_OutputItem):
    """A message of the assistant."""

    type: Literal["message"]
    role: Literal["assistant"]
    content: list[OutputTextPart]
    phase: Literal["commentary", "final_answer"] | None = optional("commentary before a function call, else final_answer.")


class OutputFunctionCall(_OutputItem):
    """A call of a function."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: Annotated[str, Field(description="JSON, unless the response is incomplete.")]


class ReasoningPart(BaseModel):
    """A part of reasoning, or of its summary."""

    type: Literal["reasoning_text", "summary_text"]
    text: str


class ReasoningOutput(_OutputItem):
    """What the model thought."""

    type: Literal["reasoning"]
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


#: Fields of the request that a response repeats.
_SAME_NAMED = (
    *("model", "user", "instructions", "max_output_tokens", "max_tool_calls"),
    *("previous_response_id", "prompt_cache_key", "safety_identifier"),
)
#: Code of OpenAI's `error` of a response, by HTTP status.
_ERROR_CODES = {400: "invalid_prompt", 404: "invalid_prompt", 429: "rate_limit_exceeded"}


def new_resource(body: ResponseRequest, response_id: str, is_stored: bool) -> dict[str, Any]:
    """The response object at its beginning. Options that the client left out have their defaults, so that none is null."""
    return {
        "id": response_id,
        "object": "response",
        "created_at": int(time.time()),
        **{name: getattr(body, name) for name in _SAME_NAMED},
        "completed_at": None,
        "status": "in_progress",
        "background": bool(body.background),
        "error": None,
        "incomplete_details": None,
        "metadata": body.metadata or {},
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "presence_penalty": body.presence_penalty or 0.0,
        "frequency_penalty": body.frequency_penalty or 0.0,
        "reasoning": _reasoning(body),
        "service_tier": "default",
        "store": is_stored,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "text": _text(body),
        "tool_choice": _tool_choice(body),
        "tools": [_tool(tool.model_dump(exclude_none=True)) for tool in body.tools or ()],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "truncation": body.truncation or "disabled",
        "usage": None,
    }


def failed(resource: dict[str, Any], error: ApiError) -> dict[str, Any]:
    """The response object of a response that ended with an error."""
    said = {"code": _ERROR_CODES.get(error.status, "server_error"), "message": error.message}
    return resource | {"status": "failed", "error": said, "completed_at": None}


def ended(resource: dict[str, Any], output: list[dict[str, Any]], is_cut: bool, cost: Cost) -> dict[str, Any]:
    """The response object of a response that ended by itself.

    Args:
        is_cut: its number of tokens reached the limit.
    """
    return resource | {
        "status": "incomplete" if is_cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "completed_at": None if is_cut else int(time.time()),
        "output": output,
        "usage": usage_json(cost.usage),
        "triptych": triptych_json(cost),
    }


def usage_json(usage: common_pb2.Usage) -> dict[str, Any]:
    """The usage object of responses."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _reasoning(body: ResponseRequest) -> dict[str, Any]:
    given = body.reasoning
    summary = (given.summary or given.generate_summary) if given is not None else None
    return {"effort": given.effort if given is not None else None, "summary": summary}


def _text(body: ResponseRequest) -> dict[str, Any]:
    given = body.text.format if body.text is not None else None
    format_: dict[str, Any] = {"type": "text"} if given is None else given.model_dump(by_alias=True)
    if format_["type"] == "json_schema":
        format_["strict"] = format_["strict"] is not False
    return {"format": format_, "verbosity": "medium"}


def _tool_choice(body: ResponseRequest) -> Any:
    choice = body.tool_choice
    if choice is None or isinstance(choice, str):
        return choice or "auto"
    written = choice.model_dump()
    if written["type"] == "allowed_tools":
        written["mode"] = written["mode"] or "auto"
    return written


def _tool(written: dict[str, Any]) -> dict[str, Any]:
    return {"description": None, "parameters": None, "strict": False} | written
