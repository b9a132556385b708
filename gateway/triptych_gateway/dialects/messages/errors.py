"""Errors as Anthropic's clients expect them."""

from __future__ import annotations

from typing import Any

import orjson

from triptych_gateway.errors import ApiError

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
