"""What surrounds every call at the gRPC port, as the middleware surrounds a request of REST."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any, TypeVar, cast

import grpc
from google.protobuf.message import Message
from triptych.errors import DeadlineExceededError, QueueFullError, ServiceUnavailableError, TriptychError
from triptych_common.host.fair_share import FairShare
from triptych_common.rpc.status import abort_call
from triptych_common.rpc.tracing import trace_in
from triptych_common.telemetry import attributes as names
from triptych_common.telemetry.logs import request_id_var

from triptych_gateway.connections.http_protocol import READ_TIMEOUT_S
from triptych_gateway.file_parts import run_sized
from triptych_gateway.rpc.call import SMALL_BYTES, Call, call_var, next_message
from triptych_gateway.rpc.wire import parse
from triptych_gateway.state import Gateway
from triptych_gateway.wire.errors import CLIENT_CLOSED_REQUEST, note_failure, to_call_error

log = logging.getLogger(__name__)
M = TypeVar("M", bound=Message)
#: Requests that arrive at the same time, at least; and calls that stream their requests, which are small.
_MIN_READS, _MAX_REQUEST_STREAMS = 4, 64


class GatewayInterceptor(grpc.aio.ServerInterceptor):
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
        yield await run_sized(len(content), partial(parse, cls, content), SMALL_BYTES)


async def _accounted(call: Call, work: Coroutine[Any, Any, None]) -> TriptychError | None:
    """Do the work of a call, and write its span, metrics and logs. Returns the error that the client gets."""
    gateway, record = call.gateway, call.record
    call_var.set(call)
    request_id_var.set(record.request_id)
    failure: TriptychError | None = None
    gateway.metrics.in_flight.inc()
    with gateway.tracer.request(call.method[1:], trace_in(call.metadata)) as span:
        try:
            await _until_stopped(work, gateway.stopping)
            record.status = 200
            call.context.set_trailing_metadata((*(call.context.trailing_metadata() or ()), *call.rates))
        except (asyncio.CancelledError, grpc.aio.BaseError):  # the second where a response could not be written
            record.is_aborted = True
            record.status = CLIENT_CLOSED_REQUEST
        except Exception as error:
            record.is_aborted = False
            record.status = note_failure(record, error).status
            failure = to_call_error(error)
        if span is not None:
            span.attributes |= {names.RPC_SYSTEM: "grpc", names.RPC_METHOD: call.method[1:]}
            if record.is_aborted:
                span.attributes[names.CANCELLED] = True
    gateway.metrics.in_flight.dec()
    gateway.metrics.request_ended(record, call.method)
    gateway.access.ended("request", record, call.client, "gRPC", call.method)
    if gateway.settings.access_log:
        log.info("%s", record.line(call.method))
    if record.is_aborted:
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
