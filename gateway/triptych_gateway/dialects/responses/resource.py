"""The response object: what the client asked for, and what came of it."""

from __future__ import annotations

import time
from typing import Any

from triptych.v1 import common_pb2

from triptych_gateway.dialects.cost import Cost
from triptych_gateway.dialects.cost_json import triptych_json
from triptych_gateway.errors import ApiError
from triptych_gateway.schemas.responses.request import ResponseRequest

#: Code of OpenAI's `error` of a response, by HTTP status.
_ERROR_CODES = {400: "invalid_prompt", 404: "invalid_prompt", 429: "rate_limit_exceeded"}


def new_resource(body: ResponseRequest, response_id: str, is_stored: bool) -> dict[str, Any]:
    """The response object at its beginning. Options that the client left out have their defaults, so that none is null."""
    return {
        "id": response_id,
        "object": "response",
        "created_at": int(time.time()),
        "completed_at": None,
        "status": "in_progress",
        "background": bool(body.background),
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "model": body.model,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "presence_penalty": body.presence_penalty or 0.0,
        "frequency_penalty": body.frequency_penalty or 0.0,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": _reasoning(body),
        "safety_identifier": body.safety_identifier,
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
        "user": body.user,
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
