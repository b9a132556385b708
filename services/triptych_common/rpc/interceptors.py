"""Code around every gRPC call: request id, place in the trace, error translation, access log."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import re
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn

import grpc
from triptych.errors import InternalError, TriptychError

from triptych_common.rpc.status import abort_call
from triptych_common.rpc.tracing import trace_in
from triptych_common.telemetry.logs import request_id_var
from triptych_common.telemetry.trace_context import TraceContext, trace_var

#: Metadata key and HTTP header of the request id.
REQUEST_ID_KEY = "x-request-id"
_SAFE_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
#: Ended calls, by method and by the name of their gRPC status.
CallCounts = Counter[tuple[str, str]]
log = logging.getLogger(__name__)


def new_request_id() -> str:
    """A fresh request id: 32 hexadecimal digits."""
    return uuid.uuid4().hex


def usable_request_id(given: str | None) -> str:
    """The client's id if it is short and safe in a log line, else a new one."""
    return given if given and _SAFE_REQUEST_ID.fullmatch(given) else new_request_id()


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Sets request id and trace of the call, turns exceptions into statuses, and logs and counts how the call ended.

    Servicer methods must be coroutines or async generators. Health checks and reflection are not intercepted.

    Args:
        counts: where the calls are counted.
    """

    def __init__(self, counts: CallCounts | None = None) -> None:
        self._counts = CallCounts() if counts is None else counts

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler | None:
        handler = await continuation(handler_call_details)
        method: str = handler_call_details.method
        if handler is None or method.startswith("/grpc."):
            return handler
        metadata = dict(handler_call_details.invocation_metadata or ())
        given = metadata.get(REQUEST_ID_KEY)
        request_id = usable_request_id(given if isinstance(given, str) else None)
        # A session lives for days, and each of its items has a trace of its own.
        is_session = handler.request_streaming and handler.response_streaming
        trace = None if is_session else trace_in(metadata)
        return wrapped(handler, lambda behaviour: _wrap(behaviour, method.rsplit("/", 1)[-1], request_id, trace, self._counts))


#: Whether requests and responses are streams -> a handler's attribute with its behaviour, and what makes such a handler.
_HANDLERS: dict[tuple[bool, bool], tuple[str, Callable[..., grpc.RpcMethodHandler]]] = {
    (False, False): ("unary_unary", grpc.unary_unary_rpc_method_handler),
    (False, True): ("unary_stream", grpc.unary_stream_rpc_method_handler),
    (True, False): ("stream_unary", grpc.stream_unary_rpc_method_handler),
    (True, True): ("stream_stream", grpc.stream_stream_rpc_method_handler),
}


def wrapped(handler: grpc.RpcMethodHandler, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> grpc.RpcMethodHandler:
    """The handler with another behaviour, for interceptors.

    Args:
        wrap: takes the behaviour, a coroutine function or an async generator function, and returns the other one of the same kind.
    """
    kind, make = _HANDLERS[handler.request_streaming, handler.response_streaming]
    behaviour = wrap(getattr(handler, kind))
    return make(behaviour, request_deserializer=handler.request_deserializer, response_serializer=handler.response_serializer)


def _wrap(
    behaviour: Callable[..., Any], method: str, request_id: str, trace: TraceContext | None, counts: CallCounts
) -> Callable[..., Any]:
    if inspect.isasyncgenfunction(behaviour):

        async def stream(request: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
            with _Call(method, request_id, trace, counts) as call:
                try:
                    # A call that is cancelled while it writes a response leaves the generator suspended. Close it at once.
                    async with contextlib.aclosing(behaviour(request, context)) as responses:
                        async for response in responses:
                            yield response
                except Exception as error:
                    await _abort(call, context, error)

        return stream

    async def unary(request: Any, context: grpc.aio.ServicerContext) -> Any:
        with _Call(method, request_id, trace, counts) as call:
            try:
                return await behaviour(request, context)
            except Exception as error:
                await _abort(call, context, error)

    return unary


async def _abort(call: _Call, context: grpc.aio.ServicerContext, error: Exception) -> NoReturn:
    if isinstance(error, (grpc.aio.AbortError, grpc.aio.BaseError)):
        raise error
    if not isinstance(error, TriptychError):
        log.error("unexpected error", exc_info=error)
        error = InternalError(f"internal error ({type(error).__name__}); the service's log has the details")
    call.outcome, call.code = error.reason, error.code.name
    await abort_call(context, error)


class _Call:
    """The time of one call: sets the request id and the trace of its code and its logs, and logs and counts the call at the end."""

    def __init__(self, method: str, request_id: str, trace: TraceContext | None, counts: CallCounts) -> None:
        self._method = method
        self._request_id = request_id
        self._trace = trace
        self._counts = counts
        #: How the call ended: for the log, and the name of its gRPC status.
        self.outcome, self.code = "ok", "OK"

    def __enter__(self) -> _Call:
        self._start_s = time.monotonic()
        request_id_var.set(self._request_id)
        trace_var.set(self._trace)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if kind is not None and issubclass(kind, (asyncio.CancelledError, GeneratorExit)):
            self.outcome, self.code = "cancelled", "CANCELLED"
        elif kind is not None and self.code == "OK":
            self.outcome, self.code = "unknown", "UNKNOWN"
        self._counts[self._method, self.code] += 1
        log.debug("%s %s in %.1f ms", self._method, self.outcome, (time.monotonic() - self._start_s) * 1e3)
