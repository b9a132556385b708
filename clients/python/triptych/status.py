"""Errors off the wire: a gRPC status with google.rpc details, or a RequestError, becomes a TriptychError."""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from triptych.errors import Code, TriptychError, error_class
from triptych.v1 import common_pb2

#: Of ErrorInfo: errors that Triptych's services raise.
DOMAIN = "triptych"
#: Trailing metadata that carries one of our errors; absent when the transport failed.
DETAILS_KEY = "grpc-status-details-bin"


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


def from_rpc_error(error: grpc.Call | grpc.aio.AioRpcError) -> TriptychError:
    """The error that the other service raised: same class, field, limit and value."""
    code: int = error.code().value[0]
    message = error.details() or error.code().name
    info, retry_after_s = error_details_pb2.ErrorInfo(), None
    status = _details(error)
    for detail in status.details if status else ():
        detail.Unpack(info)
        retry = error_details_pb2.RetryInfo()
        if detail.Unpack(retry):
            retry_after_s = retry.retry_delay.ToNanoseconds() / 1e9
    cls = error_class(info.reason, code)
    meta = info.metadata
    return cls(message, field=meta["field"], limit=meta["limit"], value=meta["value"], retry_after_s=retry_after_s)


def received_error(error: Any, request_id: str = "") -> TriptychError:
    """The same for the caller of a client. Code and reason are those that came, also if this version does not know them.

    Args:
        request_id: that was sent. A service that replaced it says so.
    """
    result = from_rpc_error(error)
    number: int = error.code().value[0]
    status = _details(error)
    info, request = error_details_pb2.ErrorInfo(), error_details_pb2.RequestInfo(request_id=request_id)
    for detail in status.details if status else ():
        detail.Unpack(info)
        detail.Unpack(request)
    result.code, result.reason = Code(number), info.reason
    result.has_details, result.request_id = status is not None, request.request_id
    return result


def from_request_error(error: common_pb2.RequestError) -> TriptychError:
    """The error of a call on a session."""
    cls = error_class(error.reason, error.code)
    return cls(
        error.message,
        field=error.field,
        limit=error.limit,
        value=error.value,
        retry_after_s=error.retry_after_s if error.HasField("retry_after_s") else None,
    )
