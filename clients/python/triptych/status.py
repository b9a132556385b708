"""Errors off the wire: a gRPC status with google.rpc details, or a RequestError, becomes a TriptychError."""

from __future__ import annotations

import contextlib
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2

from triptych.errors import Code, InternalError, TriptychError, error_class
from triptych.v1 import common_pb2

#: Of ErrorInfo: errors that Triptych's services raise.
DOMAIN = "triptych"
#: Trailing metadata that carries one of our errors; absent when the transport failed.
DETAILS_KEY = "grpc-status-details-bin"
#: gRPC's own words for a message or metadata above its limits. Its code is RESOURCE_EXHAUSTED, but no queue is full.
_TOO_LARGE = ("message larger than max", "metadata size exceeds")

_DetailT = TypeVar("_DetailT", bound=Message)


def _details(error: grpc.Call | grpc.aio.AioRpcError) -> status_pb2.Status | None:
    entries: Any = error.trailing_metadata() or ()  # the type stubs disagree with each other
    for key, value in entries:
        if key == DETAILS_KEY:
            try:
                return status_pb2.Status.FromString(value if isinstance(value, bytes) else value.encode())
            except DecodeError:  # of somebody else
                return None
    return None


def has_details(error: grpc.Call | grpc.aio.AioRpcError) -> bool:
    """Whether one of our services raised the error, not the transport."""
    return _details(error) is not None


def is_lost(error: grpc.Call | grpc.aio.AioRpcError) -> bool:
    """Whether the connection was lost, or the server stopped: calls that it had not taken end with CANCELLED (grpc/grpc#41785)."""
    return not has_details(error) and error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


def _unpacked(status: status_pb2.Status | None, detail: _DetailT) -> _DetailT | None:
    """The detail of this type; None if there is none that can be read."""
    for packed in status.details if status else ():
        with contextlib.suppress(DecodeError):
            if packed.Unpack(detail):
                return detail
    return None


def from_rpc_error(error: grpc.Call | grpc.aio.AioRpcError) -> TriptychError:
    """The error that the other service raised: same class, field, limit and value."""
    code: int = error.code().value[0]
    message = error.details() or error.code().name
    status = _details(error)
    info = _unpacked(status, error_details_pb2.ErrorInfo()) or error_details_pb2.ErrorInfo()
    retry = _unpacked(status, error_details_pb2.RetryInfo())
    is_too_large = status is None and code == Code.RESOURCE_EXHAUSTED and any(text in message for text in _TOO_LARGE)
    cls = InternalError if is_too_large else error_class(info.reason, code)
    meta = info.metadata
    return cls(
        message,
        field=meta["field"],
        limit=meta["limit"],
        value=meta["value"],
        retry_after_s=retry.retry_delay.ToNanoseconds() / 1e9 if retry else None,
    )


def received_error(error: Any, request_id: str = "") -> TriptychError:
    """The same for the caller of a client. Code and reason are those that came, also if this version does not know them.

    Args:
        request_id: that was sent. A service that replaced it says so.
    """
    result = from_rpc_error(error)
    number: int = error.code().value[0]
    status = _details(error)
    info = _unpacked(status, error_details_pb2.ErrorInfo())
    request = _unpacked(status, error_details_pb2.RequestInfo())
    result.code, result.reason = Code(number), info.reason if info else ""
    result.has_details, result.request_id = status is not None, request.request_id if request else request_id
    return result


def from_request_error(error: common_pb2.RequestError) -> TriptychError:
    """The error of a call on a session."""
    result = error_class(error.reason, error.code)(
        error.message,
        field=error.field,
        limit=error.limit,
        value=error.value,
        retry_after_s=error.retry_after_s if error.HasField("retry_after_s") else None,
    )
    # A newer service may have a reason that this version does not know.
    with contextlib.suppress(ValueError):
        result.code = Code(error.code)
    result.reason = error.reason or result.reason
    return result
