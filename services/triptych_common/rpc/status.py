"""Errors onto the wire: TriptychError -> gRPC status with google.rpc details, or RequestError. `triptych.status` reads them."""

from __future__ import annotations

from typing import NoReturn

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from triptych.errors import Code, InternalError, TriptychError
from triptych.status import DETAILS_KEY, DOMAIN
from triptych.v1 import common_pb2

from triptych_common.telemetry.logs import request_id_var

#: Longest message of an error on the wire, and longest field, limit or value, in bytes of UTF-8. Errors quote what the client sent,
#: which can have megabytes. Libraries drop details if the trailing metadata has 8 KiB or more. The message is in the status, where
#: a byte may take three, and twice in the details, which many libraries send in base64.
_MAX_MESSAGE_BYTES = 800
_MAX_TEXT_BYTES = 256
#: gRPC's key for the time until the next attempt, in milliseconds; a negative one forbids it. Nobody waits longer by itself.
_PUSHBACK_KEY, _MAX_PUSHBACK_S = "grpc-retry-pushback-ms", 30.0
_STATUS_CODES: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}


def _cut(text: str, limit: int = _MAX_TEXT_BYTES) -> str:
    utf8 = text[:limit].encode(errors="replace")
    if len(text) <= limit and len(utf8) <= limit:
        return text
    return f"{utf8[:limit].decode(errors='ignore')}... ({len(text)} characters)"


def to_status(error: TriptychError, request_id: str = "") -> status_pb2.Status:
    """The error as google.rpc.Status with ErrorInfo, and BadRequest, RetryInfo or RequestInfo where they apply."""
    message = _cut(error.message, _MAX_MESSAGE_BYTES)
    details: list[Message] = [
        error_details_pb2.ErrorInfo(
            reason=error.reason,
            domain=DOMAIN,
            metadata={"field": _cut(error.field), "limit": _cut(error.limit), "value": _cut(error.value)},
        )
    ]
    if error.field and error.code == Code.INVALID_ARGUMENT:
        violation = error_details_pb2.BadRequest.FieldViolation(field=_cut(error.field), description=message)
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if error.retry_after_s is not None:
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(int(error.retry_after_s * 1e9))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    if request_id:
        details.append(error_details_pb2.RequestInfo(request_id=request_id))
    status = status_pb2.Status(code=int(error.code), message=message)
    for detail in details:
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    return status


async def abort_call(
    context: grpc.aio.ServicerContext, error: TriptychError, metadata: tuple[tuple[str, str], ...] = ()
) -> NoReturn:
    """End the call with the error's status and details. Always raises, with grpc's own abort exception.

    Args:
        metadata: further trailing metadata.
    """
    status = to_status(error, request_id_var.get())
    trailers = ((DETAILS_KEY, status.SerializeToString()), *_pushback(error), *metadata)
    await context.abort(_STATUS_CODES[status.code], status.message, trailers)
    raise AssertionError("context.abort never returns")


def _pushback(error: TriptychError) -> tuple[tuple[str, str], ...]:
    """When clients make the call again by themselves, as gRPC reads it (proposal A6).

    A full queue that does not say when is left to the caller.

    Returns:
        metadata; empty for an error that is retried as the client's settings say, or not at all.
    """
    if error.retry_after_s is not None and error.retry_after_s <= _MAX_PUSHBACK_S:
        return ((_PUSHBACK_KEY, str(round(error.retry_after_s * 1000))),)
    is_left_to_caller = error.retry_after_s is not None or error.code == Code.RESOURCE_EXHAUSTED
    return ((_PUSHBACK_KEY, "-1"),) if is_left_to_caller else ()


def to_request_error(error: BaseException) -> common_pb2.RequestError:
    """The error for a stream that many requests share. Other exceptions are reported as internal, without their text."""
    if not isinstance(error, TriptychError):
        error = InternalError(f"internal error ({type(error).__name__}); the service's log has the details")
    return common_pb2.RequestError(
        code=int(error.code),
        message=_cut(error.message, _MAX_MESSAGE_BYTES),
        reason=error.reason,
        field=_cut(error.field),
        limit=_cut(error.limit),
        value=_cut(error.value),
        retry_after_s=error.retry_after_s,
    )
