"""Errors on the wire: TriptychError <-> gRPC status with google.rpc details, and TriptychError <-> RequestError."""

from __future__ import annotations

from typing import NoReturn

import grpc
from google.protobuf import any_pb2, duration_pb2, message
from google.rpc import error_details_pb2, status_pb2

from triptych_common.errors import Code, InternalError, TriptychError, error_class
from triptych_common.pb import common_pb2

DOMAIN = "triptych"
#: Trailing metadata that carries one of our errors; absent when the transport failed.
DETAILS_KEY = "grpc-status-details-bin"
#: Longest text of an error on the wire, in characters. Errors quote the client's value, which can have megabytes.
_MAX_TEXT_CHARS = 1000
_STATUS_CODES: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_TEXT_CHARS else f"{text[:_MAX_TEXT_CHARS]}... ({len(text)} characters)"


def to_status(error: TriptychError) -> status_pb2.Status:
    """The error as google.rpc.Status with ErrorInfo, and BadRequest or RetryInfo where they apply."""
    details: list[message.Message] = [
        error_details_pb2.ErrorInfo(
            reason=error.reason,
            domain=DOMAIN,
            metadata={"field": _cut(error.field), "limit": _cut(error.limit), "value": _cut(error.value)},
        )
    ]
    if error.field and error.code == Code.INVALID_ARGUMENT:
        violation = error_details_pb2.BadRequest.FieldViolation(field=_cut(error.field), description=_cut(error.message))
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if error.retry_after_s is not None:
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(int(error.retry_after_s * 1e9))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    status = status_pb2.Status(code=int(error.code), message=_cut(error.message))
    for detail in details:
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    return status


async def abort_call(context: grpc.aio.ServicerContext, error: TriptychError) -> NoReturn:
    """End the call with the error's status and details. Always raises, with grpc's own abort exception."""
    status = to_status(error)
    await context.abort(_STATUS_CODES[status.code], status.message, ((DETAILS_KEY, status.SerializeToString()),))
    raise AssertionError("context.abort never returns")


def has_details(error: grpc.aio.AioRpcError) -> bool:
    """Whether one of our services raised the error, not the transport."""
    return any(key == DETAILS_KEY for key, _ in error.trailing_metadata() or ())


def from_rpc_error(error: grpc.aio.AioRpcError) -> TriptychError:
    """The error that the other service raised: same class, field, limit and value."""
    code: int = error.code().value[0]
    message = error.details() or error.code().name
    info, retry_after_s = error_details_pb2.ErrorInfo(), None
    for key, value in error.trailing_metadata() or ():
        if key != DETAILS_KEY:
            continue
        status = status_pb2.Status.FromString(value if isinstance(value, bytes) else value.encode())
        for detail in status.details:
            detail.Unpack(info)
            retry = error_details_pb2.RetryInfo()
            if detail.Unpack(retry):
                retry_after_s = retry.retry_delay.ToNanoseconds() / 1e9
    cls = error_class(info.reason, code)
    meta = info.metadata
    return cls(message, field=meta["field"], limit=meta["limit"], value=meta["value"], retry_after_s=retry_after_s)


def to_request_error(error: BaseException) -> common_pb2.RequestError:
    """The error for a stream that many requests share. Other exceptions are reported as internal, without their text."""
    if not isinstance(error, TriptychError):
        error = InternalError(f"internal error ({type(error).__name__}); the service's log has the details")
    return common_pb2.RequestError(
        code=int(error.code),
        message=_cut(error.message),
        reason=error.reason,
        field=_cut(error.field),
        limit=_cut(error.limit),
        value=_cut(error.value),
        retry_after_s=error.retry_after_s,
    )


def from_request_error(error: common_pb2.RequestError) -> TriptychError:
    """The inverse of `to_request_error`."""
    cls = error_class(error.reason, error.code)
    return cls(
        error.message,
        field=error.field,
        limit=error.limit,
        value=error.value,
        retry_after_s=error.retry_after_s if error.HasField("retry_after_s") else None,
    )
