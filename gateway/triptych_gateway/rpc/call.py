"""What surrounds every call at the gRPC port: id, trace, key, rates, memory, errors, metrics, audit log."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import aclosing, asynccontextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar, cast
from urllib.parse import unquote

import grpc
from google.protobuf.message import Message
from triptych.errors import DeadlineExceededError, InvalidRequestError, QueueFullError, ServiceUnavailableError, TriptychError
from triptych_common.host.fair_share import FairShare
from triptych_common.rpc.interceptors import REQUEST_ID_KEY, usable_request_id
from triptych_common.rpc.principal import ANONYMOUS
from triptych_common.rpc.status import abort_call
from triptych_common.rpc.tracing import trace_in
from triptych_common.telemetry import attributes as names
from triptych_common.telemetry.logs import request_id_var
from triptych_common.telemetry.trace_context import TraceContext

from triptych_gateway.access.grant import Grant
from triptych_gateway.body_budget import BodyHold
from triptych_gateway.connections.http_protocol import READ_TIMEOUT_S
from triptych_gateway.errors import CLIENT_CLOSED_REQUEST, note_failure, to_call_error
from triptych_gateway.file_parts import run_sized
from triptych_gateway.metrics import GenerationMeter
from triptych_gateway.record import RequestRecord
from triptych_gateway.rpc.media import parse_apart
from triptych_gateway.rpc.wire import parse
from triptych_gateway.settings import GatewaySettings
from triptych_gateway.state import Gateway

log = logging.getLogger(__name__)
M = TypeVar("M", bound=Message)
#: Methods for operators' keys. All others need any key.
OPERATOR_METHODS = frozenset({"/triptych.v1.GenerationService/GetLoad"})
#: A larger request is parsed in a thread. An empty message in it takes two bytes, and microseconds of Python.
_SMALL_BYTES = 4 << 10
#: Memory of a request while it is parsed, as a multiple of its bytes: itself, and the message with its files.
_MEMORY_FACTOR = 2
#: Requests that arrive at the same time, at least; and calls that stream their requests, which are small.
_MIN_READS, _MAX_REQUEST_STREAMS = 4, 64


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
        #: Path of a media item -> its file, which was cut out of the request.
        self.files: dict[str, bytes] = {}
        self._hold: BodyHold | None = None
        #: Called when the call has ended, however it ended.
        self.on_end: list[Callable[[], None]] = []

    @property
    def trace(self) -> TraceContext | None:
        """The client's place in its trace."""
        return trace_in(self._metadata)

    @property
    def client(self) -> str:
        """The address that the call came from, without its port."""
        # ipv4:127.0.0.1:40000 or ipv6:%5B::1%5D:40000
        return unquote(self.context.peer()).partition(":")[2].rpartition(":")[0].strip("[]")

    @property
    def rates(self) -> tuple[tuple[str, str], ...]:
        """What the key may still do, as trailing metadata."""
        return tuple((name.decode(), value.decode()) for name, value in self.record.rate_headers.items())

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
        except (asyncio.CancelledError, grpc.aio.BaseError):
            # Now, because the grant's end settles what a client that left has used.
            record.is_aborted = True
            raise
        finally:
            self.release()
            for end in self.on_end:
                end()
            self.grant.end()

    async def read(self, cls: type[M], requests: AsyncIterator[bytes]) -> M:
        """The only request of a call that does not stream them. Its files are in `files`.

        Raises:
            InvalidRequestError: it is no such message, or it is too large.
            DeadlineExceededError: it did not arrive in time.
            QueueFullError: there is no memory for it.
        """
        content = await next_message(requests, self.gateway.settings)
        if content is None:
            raise InvalidRequestError("the call has no request")
        self._hold = self.gateway.bodies.hold(self.tenant, len(content) * _MEMORY_FACTOR)
        await self._hold.grow(len(content) * _MEMORY_FACTOR)
        self._hold.complete()
        request, self.files = await run_sized(len(content), partial(parse_apart, cls, content), _SMALL_BYTES)
        self._hold.shrink(sum(map(len, self.files.values())) + request.ByteSize())
        return request


async def next_message(requests: AsyncIterator[bytes], settings: GatewaySettings) -> bytes | None:
    """The next message of a client; None at the end. Raises what `Call.read` raises."""
    timeout_s, limit = settings.body_timeout_s, settings.max_body_bytes
    try:
        async with asyncio.timeout(timeout_s):
            content = await anext(requests, None)
    except TimeoutError:
        message = f"the request did not arrive within {timeout_s:g} s (body_timeout_s)"
        raise DeadlineExceededError(message, limit=timeout_s) from None
    if content is not None and len(content) > limit:
        message = f"the request has {len(content)} bytes, more than {limit} (max_body_bytes)"
        raise InvalidRequestError(message, limit=limit, value=len(content))
    return content


#: The call that the current task answers.
call_var: ContextVar[Call] = ContextVar("call")


class DoorInterceptor(grpc.aio.ServerInterceptor):
    """Lets a call in, and accounts for it when it ends.

    A call that is refused for its key is refused before its request is read. gRPC would read all of it first, so each method is
    served as one that streams in both directions.

    gRPC tells the size of a message only when all of it has arrived. So only so many messages arrive at the same time, of tenants
    in fair shares, as would fit into the budget of bodies if each were as large as it may be.

    Args:
        requests: method -> the class of its requests.
    """

    def __init__(self, gateway: Gateway, requests: Mapping[str, type[Message]]) -> None:
        self._gateway, self._requests = gateway, requests
        settings = gateway.settings
        self._reads = gateway.access.shares(max(_MIN_READS, settings.max_live_body_bytes // settings.max_body_bytes))
        self._streams = gateway.access.shares(_MAX_REQUEST_STREAMS)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler | None:
        handler = await continuation(handler_call_details)
        method: str = handler_call_details.method
        if handler is None:
            return None
        metadata, cls = dict(handler_call_details.invocation_metadata or ()), self._requests[method]

        async def serve(requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> None:
            call = Call(self._gateway, method, metadata, context)
            failure = await _accounted(call, self._respond(call, handler, cls, requests))
            if failure is not None:
                await abort_call(context, failure, call.rates)

        return grpc.stream_stream_rpc_method_handler(serve, None, handler.response_serializer)

    async def _respond(self, call: Call, handler: Any, cls: type[Message], requests: AsyncIterator[bytes]) -> None:
        """Answer the call as its key permits."""
        context = call.context
        async with call.granted():
            if handler.request_streaming:
                async with self._held(self._streams, call):
                    await _answer(handler, _parsed(call, cls, requests), context)
            else:
                async with self._held(self._reads, call):
                    request = await call.read(cls, requests)
                await _answer(handler, request, context)

    @asynccontextmanager
    async def _held(self, places: FairShare, call: Call) -> AsyncIterator[None]:
        """Hold one of the places while the block runs. Raises QueueFullError if none becomes free in time."""
        wait_s = self._gateway.settings.body_wait_s
        if not await places.take_when_free(call.tenant, timeout_s=wait_s):
            message = f"{places.used} requests arrive at the same time; try again later"
            raise QueueFullError(message, limit=places.capacity, value=places.used, retry_after_s=1.0)
        try:
            yield
        finally:
            places.give_back(call.tenant)


async def _answer(handler: Any, argument: Any, context: grpc.aio.ServicerContext) -> None:
    kinds = ["stream" if streams else "unary" for streams in (handler.request_streaming, handler.response_streaming)]
    behaviour = getattr(handler, "_".join(kinds))
    if not handler.response_streaming:
        await _write(context, await behaviour(argument, context))
    elif inspect.isasyncgenfunction(behaviour):
        async with aclosing(behaviour(argument, context)) as responses:
            async for response in responses:
                await _write(context, response)
    else:  # of the health service: it writes by itself
        await behaviour(argument, context)


async def _write(context: grpc.aio.ServicerContext, response: Message) -> None:
    """Send a response. Raises DeadlineExceededError for a client that does not read: it keeps a place that others need."""
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            await context.write(response)
    except TimeoutError:
        raise DeadlineExceededError(f"the client read nothing for {READ_TIMEOUT_S:g} s", limit=READ_TIMEOUT_S) from None


async def _parsed(call: Call, cls: type[M], requests: AsyncIterator[bytes]) -> AsyncGenerator[M, None]:
    while (content := await next_message(requests, call.gateway.settings)) is not None:
        yield await run_sized(len(content), partial(parse, cls, content), _SMALL_BYTES)


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
            call.context.set_trailing_metadata((*(call.context.trailing_metadata() or ()), *call.rates))
        except (asyncio.CancelledError, grpc.aio.BaseError):  # the second where a response could not be written
            is_cancelled = record.is_aborted = True
            record.status = CLIENT_CLOSED_REQUEST
        except Exception as error:
            record.is_aborted = False
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
