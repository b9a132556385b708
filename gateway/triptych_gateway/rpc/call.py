"""What surrounds every call at the gRPC port: id, trace, key, rates, memory, errors, metrics, audit log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import aclosing, asynccontextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar, cast
from urllib.parse import unquote

import grpc
from google.protobuf.message import Message
from triptych.errors import DeadlineExceededError, InvalidRequestError, ServiceUnavailableError, TriptychError
from triptych_common.rpc.interceptors import REQUEST_ID_KEY, usable_request_id
from triptych_common.rpc.principal import ANONYMOUS
from triptych_common.rpc.status import abort_call
from triptych_common.rpc.tracing import trace_in
from triptych_common.telemetry import attributes as names
from triptych_common.telemetry.logs import request_id_var
from triptych_common.telemetry.trace_context import TraceContext

from triptych_gateway.access.grant import Grant
from triptych_gateway.body_budget import BodyHold
from triptych_gateway.errors import CLIENT_CLOSED_REQUEST, note_failure, to_call_error
from triptych_gateway.file_parts import run_sized
from triptych_gateway.metrics import GenerationMeter
from triptych_gateway.record import RequestRecord
from triptych_gateway.rpc.wire import parse
from triptych_gateway.state import Gateway

log = logging.getLogger(__name__)
M = TypeVar("M", bound=Message)
#: Methods for operators' keys. All others need any key.
OPERATOR_METHODS = frozenset({"/triptych.v1.GenerationService/GetLoad"})
#: Need no key: health and reflection tell nothing of anybody.
_OPEN = ("/grpc.health.", "/grpc.reflection.")


class Call:
    """One call: its record, what it may do, and the memory of its request.

    Args:
        method: as /package.Service/Method.
        metadata: that the client sent.
    """

    grant: Grant

    def __init__(
        self, gateway: Gateway, method: str, metadata: Mapping[str, str | bytes], context: grpc.aio.ServicerContext
    ) -> None:
        self.gateway, self.method, self.context = gateway, method, context
        given = metadata.get(REQUEST_ID_KEY)
        self.record = RequestRecord(usable_request_id(given if isinstance(given, str) else None))
        self._metadata = metadata
        self.tenant = ANONYMOUS.tenant
        self._hold: BodyHold | None = None

    @property
    def trace(self) -> TraceContext | None:
        """The client's place in its trace."""
        return trace_in(self._metadata)

    @property
    def client(self) -> str:
        """The address that the call came from, without its port."""
        # ipv4:127.0.0.1:40000 or ipv6:%5B::1%5D:40000
        return unquote(self.context.peer()).partition(":")[2].rpartition(":")[0].strip("[]")

    def tell_rates(self) -> None:
        """Tell the client in the trailing metadata what its key may still do."""
        rates = tuple((name.decode(), value.decode()) for name, value in self.record.rate_headers.items())
        if rates:
            self.context.set_trailing_metadata((*(self.context.trailing_metadata() or ()), *rates))

    def meter(self) -> GenerationMeter:
        """For the text that this call generates."""
        return GenerationMeter(self.gateway.metrics, self.record, self.method)

    def use_model(self, name: str) -> None:
        """Note the model, and refuse it if the key does not have it."""
        self.grant.use_model(name or None, self.gateway.served_models)

    def release(self) -> None:
        """Give the memory of the request back: it is no longer kept."""
        if self._hold is not None:
            self._hold.release()

    async def hold(self, num_bytes: int) -> None:
        """Take memory for the request. Raises QueueFullError if none becomes free in time."""
        self._hold = self.gateway.bodies.hold(self.tenant, num_bytes)
        await self._hold.grow(num_bytes)
        self._hold.complete()

    @asynccontextmanager
    async def granted(self) -> AsyncIterator[None]:
        """The block is what the caller's key permits. Raises AccessDeniedError."""
        access, record = self.gateway.access, self.record
        headers = {key: value for key, value in self._metadata.items() if isinstance(value, str)}
        is_for_operators = self.method in OPERATOR_METHODS
        key = access.authenticate(headers, record, for_operators=is_for_operators)
        if not is_for_operators:
            await access.pace(key)
            key = access.renewed(key, record)
        self.grant = await access.begin(key, record)
        self.tenant = (key.principal if key is not None else ANONYMOUS).tenant
        try:
            yield
        finally:
            self.release()
            self.grant.end()

    async def read(self, cls: type[M], requests: AsyncIterator[bytes]) -> M:
        """The only request of a call that does not stream them.

        Raises:
            InvalidRequestError: it is no such message, or it is too large.
            DeadlineExceededError: it did not arrive in time.
            QueueFullError: there is no memory for it.
        """
        timeout_s = self.gateway.settings.body_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                content = await anext(requests, None)
        except TimeoutError:
            message = f"the request did not arrive within {timeout_s:g} s (body_timeout_s)"
            raise DeadlineExceededError(message, limit=timeout_s) from None
        if content is None:
            raise InvalidRequestError("the call has no request")
        limit = self.gateway.settings.max_body_bytes
        if len(content) > limit:
            message = f"the request has {len(content)} bytes, more than {limit} (max_body_bytes)"
            raise InvalidRequestError(message, limit=limit, value=len(content))
        await self.hold(len(content))
        return await run_sized(len(content), lambda: parse(cls, content))


#: The call that the current task answers.
call_var: ContextVar[Call] = ContextVar("call")


class DoorInterceptor(grpc.aio.ServerInterceptor):
    """Lets a call in, and accounts for it when it ends.

    A call that is refused for its key is refused before its request is read. gRPC would read all of it first, so each method is
    served as one that streams in both directions.

    Args:
        requests: method -> the class of its requests.
    """

    def __init__(self, gateway: Gateway, requests: Mapping[str, type[Message]]) -> None:
        self._gateway, self._requests = gateway, requests

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler | None:
        handler = await continuation(handler_call_details)
        method: str = handler_call_details.method
        if handler is None or method.startswith(_OPEN):
            return handler
        metadata, cls = dict(handler_call_details.invocation_metadata or ()), self._requests[method]

        async def serve(requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> None:
            call = Call(self._gateway, method, metadata, context)
            failure = await _accounted(call, _respond(call, handler, cls, requests))
            if failure is not None:
                await abort_call(context, failure)

        return grpc.stream_stream_rpc_method_handler(serve, None, handler.response_serializer)


async def _respond(call: Call, handler: Any, cls: type[Message], requests: AsyncIterator[bytes]) -> None:
    """Answer the call as its key permits."""
    context = call.context
    async with call.granted():
        argument = _parsed(cls, requests) if handler.request_streaming else await call.read(cls, requests)
        kinds = ["stream" if streams else "unary" for streams in (handler.request_streaming, handler.response_streaming)]
        behaviour = getattr(handler, "_".join(kinds))
        if not handler.response_streaming:
            await context.write(await behaviour(argument, context))
            return
        async with aclosing(behaviour(argument, context)) as responses:
            async for response in responses:
                await context.write(response)


async def _parsed(cls: type[M], requests: AsyncIterator[bytes]) -> AsyncGenerator[M, None]:
    async for content in requests:
        yield await run_sized(len(content), partial(parse, cls, content))


async def _accounted(call: Call, work: Coroutine[Any, Any, None]) -> TriptychError | None:
    """Do the work of a call, and write its span, metrics and logs. Returns the error that the client gets."""
    gateway, record = call.gateway, call.record
    call_var.set(call)
    request_id_var.set(record.request_id)
    failure: TriptychError | None = None
    is_cancelled = False
    gateway.metrics.in_flight.inc()
    with gateway.tracer.request(call.method[1:], call.trace) as span:
        try:
            await _until_stopped(work, gateway.stopping)
            record.status = 200
            call.tell_rates()
        except asyncio.CancelledError:
            is_cancelled = record.is_aborted = True
            record.status = CLIENT_CLOSED_REQUEST
        except Exception as error:
            record.status = note_failure(record, error).status
            failure = to_call_error(error)
        if span is not None:
            span.attributes |= {names.RPC_SYSTEM: "grpc", names.RPC_METHOD: call.method[1:]}
            if is_cancelled:
                span.attributes[names.CANCELLED] = True
    gateway.metrics.in_flight.dec()
    gateway.metrics.request_ended(record, call.method)
    gateway.access.ended("request", record, call.client, "gRPC", call.method)
    if gateway.settings.access_log:
        log.info("%s", record.line(call.method))
    if is_cancelled:
        raise asyncio.CancelledError
    return failure


async def _until_stopped(work: Coroutine[Any, Any, None], stopping: asyncio.Future[None]) -> None:
    """Do the work in this task. Raises ServiceUnavailableError when the gateway has to stop before the work is done."""
    task = cast(asyncio.Task[None], asyncio.current_task())
    is_stopped = False

    def stop(_: object) -> None:
        nonlocal is_stopped
        is_stopped = task.cancel()

    stopping.add_done_callback(stop)
    try:
        await work
    except asyncio.CancelledError:
        if not is_stopped or task.uncancel():
            raise
        raise ServiceUnavailableError("the gateway is stopping; try again", retry_after_s=0.0) from None
    finally:
        stopping.remove_done_callback(stop)
