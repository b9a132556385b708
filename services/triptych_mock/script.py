"""Scripts: what a request asks the mock to do."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterable
from typing import Any

import grpc
from google.protobuf import json_format, message
from triptych.errors import Code, InvalidRequestError, error_class
from triptych.mock.v1 import mock_pb2
from triptych.v1 import generation_pb2

_MAX_TOKEN_BYTES = 1 << 20
_MAX_TOKENS = 1_000_000
#: Of an answer: of num_tokens times token_bytes.
_MAX_ANSWER_BYTES = 256 << 20
_STATUS_CODES: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}
#: Field 9999, which no message of the contracts has: a tag of type "length-delimited", a length, three bytes.
_UNKNOWN_FIELD = b"\xfa\xf0\x04\x03new"


def find_script(text: str) -> mock_pb2.Script | None:
    """The script that a text is; None if it is an ordinary text. Raises InvalidRequestError for a script that cannot be read."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(parsed, dict) or set(parsed) != {"mock"}:
        return None
    try:
        script = json_format.ParseDict(parsed["mock"], mock_pb2.Script())
    except (json_format.ParseError, AttributeError, TypeError) as error:
        raise InvalidRequestError(f"the mock's script cannot be read: {error}", field="mock") from error
    _check(script)
    return script


def _check(script: mock_pb2.Script) -> None:
    for field, limit in (("token_bytes", _MAX_TOKEN_BYTES), ("num_tokens", _MAX_TOKENS)):
        if (value := getattr(script, field)) > limit:
            raise InvalidRequestError(f"mock.{field} may be at most {limit}; given: {value}", field=field, limit=limit, value=value)
    if (size := script.num_tokens * script.token_bytes) > _MAX_ANSWER_BYTES:
        message = f"mock.num_tokens * mock.token_bytes may be at most {_MAX_ANSWER_BYTES}; given: {size}"
        raise InvalidRequestError(message, field="token_bytes", limit=_MAX_ANSWER_BYTES, value=size)
    for field in ("first_token_s", "token_s"):
        if not 0 <= (seconds := getattr(script, field)) < math.inf:
            raise InvalidRequestError(f"mock.{field} must be a time in seconds; given: {seconds}", field=field, value=seconds)
    error = script.fault.error
    if script.fault.HasField("error") and ((not error.reason and error.code == 0) or error.code not in {0, *map(int, Code)}):
        raise InvalidRequestError(f"mock.fault.error.code must be a status of an error; given: {error.code}", field="mock")
    if not 0 <= error.retry_after_s < 1e9:
        message = f"mock.fault.error.retry_after_s must be a time in seconds; given: {error.retry_after_s}"
        raise InvalidRequestError(message, field="mock")


def script_of(text: str) -> mock_pb2.Script:
    """The script in a text; for an ordinary text one that answers with this text."""
    return find_script(text) or mock_pb2.Script(text=text)


def last_text(messages: Iterable[generation_pb2.ChatMessage]) -> str:
    """The last text part of the last message; empty if there is none."""
    parts = [*messages][-1:]
    texts = [part.text for item in parts for part in item.content if part.HasField("text")]
    return texts[-1] if texts else ""


def answer_tokens(script: mock_pb2.Script, split: Any) -> list[str]:
    """The tokens of the answer's text.

    Args:
        split: cuts a text into tokens.
    """
    if script.text:
        return split(script.text)
    tokens = [f"{' ' if index else ''}word{index + 1}" for index in range(script.num_tokens)]
    return [token.ljust(script.token_bytes, "x") for token in tokens]


async def play_fault(fault: mock_pb2.Fault, num_earlier_calls: int, context: grpc.aio.ServicerContext | None = None) -> None:
    """Go wrong as the script says; returns if this call has no fault.

    Args:
        num_earlier_calls: calls with the same id before this one.
        context: of the call, to end it; None for a call on a session, which ends with an error of its own.

    Raises:
        TriptychError: the fault is an error with details.
        grpc.aio.AbortError: the fault is a bare status.
    """
    kind = fault.WhichOneof("kind")
    if kind is None or 0 < fault.num_calls <= num_earlier_calls:
        return
    if kind == "stall":
        await asyncio.Event().wait()
    if kind == "bare_code" and context is not None:
        code = _STATUS_CODES.get(fault.bare_code)
        if code in (None, grpc.StatusCode.OK):
            raise InvalidRequestError(f"mock.fault.bare_code must be a status of an error; given: {fault.bare_code}", field="mock")
        await context.abort(code, f"the mock ends the call with {code.name}")
    told = fault.error
    error = error_class(told.reason, told.code or fault.bare_code)(
        told.message or "the mock was told to fail",
        field=told.field,
        limit=told.limit,
        value=told.value,
        retry_after_s=told.retry_after_s if told.HasField("retry_after_s") else None,
    )
    # A newer server may send a reason that this version does not know, with any code.
    error.code, error.reason = Code(told.code or error.code), told.reason or error.reason
    raise error


def add_unknown_field(response: message.Message) -> None:
    """Add a field that the contracts do not have, as a newer server may send it."""
    response.MergeFromString(_UNKNOWN_FIELD)
