"""Chooses a frontend for the calls of each HTTP request, and another one if the first is lost or refuses before it answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

import grpc
from triptych.errors import InternalError, InvalidRequestError, ServiceUnavailableError, TriptychError
from triptych.status import from_rpc_error, has_details
from triptych.v1 import common_pb2, generation_pb2
from triptych_common.cluster.pool import Pool
from triptych_common.rpc.channels import MAX_MESSAGE_BYTES, was_closed

from triptych_gateway.frontends.calls import Calls, FrontendCall, Response
from triptych_gateway.frontends.connection import FrontendConnection
from triptych_gateway.frontends.models import ServedModels

log = logging.getLogger(__name__)
T = TypeVar("T")
#: Files of a call up to this total size are sent in the call, because an upload would cost one more round trip.
MAX_INLINE_FILE_BYTES = 256 << 10
#: A request with named media goes to the frontend that rendezvous hashing gives for the name, because that frontend may know the
#: name. It goes to the least loaded frontend instead if the load of the former exceeds this number plus twice the smallest load.
_MAX_STICKY_LOAD = 8
_AWAY = "the model's frontend is away; try again"


class FrontendRouter:
    """Chooses a frontend for each request, among those that serve its model."""

    def __init__(self, pool: Pool[FrontendConnection], models: ServedModels) -> None:
        self._pool, self._models = pool, models
        self._placing: set[asyncio.Task[None]] = set()

    async def generate(
        self, calls: Sequence[FrontendCall], context: common_pb2.CallContext, on_accepted: Callable[[], None] = lambda: None
    ) -> AsyncGenerator[list[tuple[int, Response]], None]:
        """The responses of the calls, each with the index of its call.

        The calls are sent when the first item is requested. The first error ends all calls. Closing the generator cancels them.

        Args:
            on_accepted: called once, when the files of the calls are no longer kept.
        """
        tried: set[str] = set()
        placing: list[asyncio.Task[None]] = []

        def place_again(mailbox: Calls, error: TriptychError) -> bool:
            if self.choose(mailbox.model, tried, mailbox.calls) is None and self._grace_left_s(mailbox.model, tried, error) <= 0:
                return False
            task = asyncio.create_task(self._place(mailbox, context, tried, error), name="calls to another frontend")
            self._placing.add(task)
            task.add_done_callback(self._placing.discard)
            placing.append(task)
            return True

        mailbox = Calls(calls, place_again, on_accepted)
        del calls  # only the mailbox keeps the files, until a frontend has answered
        try:
            await self._place(mailbox, context, tried, None)
            while responses := await mailbox.next():
                yield responses
        finally:
            mailbox.close()
            for task in placing:
                task.cancel()

    def choose(self, model: str, tried: set[str], calls: Sequence[FrontendCall] = ()) -> FrontendConnection | None:
        """The frontend for a request to this model; None if there is none. `tried`: instances that are not chosen."""

        def suits(frontend: FrontendConnection) -> bool:
            return frontend.serves(model) and frontend.instance_id not in tried and self._pool.may_try_another(tried)

        least = self._pool.least_loaded(suits)
        if least is None:
            # A connected frontend without an engine refuses the request with the reason.
            return next((one for one in self._pool.connections if one.takes_calls and suits(one)), None)
        key = _sticky_key(calls)
        if key is None:
            return least
        own = next((one for one in self._pool.ranked(key) if suits(one)), least)
        return least if own.is_doubtful or own.load > _MAX_STICKY_LOAD + 2 * least.load else own

    async def next(
        self, model: str, tried: set[str], error: TriptychError | None, calls: Sequence[FrontendCall] = (), *, waits: bool = True
    ) -> FrontendConnection | None:
        """Choose a frontend, and add it to those that were tried. None if there is none.

        Args:
            error: why the last one did not do.
            waits: for a frontend that was not tried, if one was there a moment ago.
        """
        while (frontend := self.choose(model, tried, calls)) is None:
            left_s = self._grace_left_s(model, tried, error) if waits else 0.0
            if left_s <= 0 or not await self._pool.until(lambda: self.choose(model, tried) is not None, left_s):
                return None
        tried.add(frontend.instance_id)
        return frontend

    def _grace_left_s(self, model: str, tried: set[str], error: TriptychError | None) -> float:
        return self._pool.grace_left_s(tried, error, lambda frontend: frontend.serves(model))

    def away(self) -> ServiceUnavailableError:
        """The error for a request that finds no frontend. The addresses are written to the log and hidden from clients."""
        log.warning("%s", self._pool.none_left())
        return ServiceUnavailableError(_AWAY, retry_after_s=1.0)

    async def close(self) -> None:
        """Cancel sending calls to other frontends."""
        for task in self._placing:
            task.cancel()
        await asyncio.gather(*self._placing, return_exceptions=True)

    async def _place(self, mailbox: Calls, context: common_pb2.CallContext, tried: set[str], error: TriptychError | None) -> None:
        """Send the calls to a frontend. If none is left, fail them with the error of the last one that was tried."""
        try:
            requests = [call.request for call in mailbox.calls]
            await self._models.until_served(mailbox.model, requests, tenant=context.tenant)
        except TriptychError as failure:
            mailbox.fail(failure)
        while not mailbox.is_closed:
            frontend = await self.next(mailbox.model, tried, error, mailbox.calls)
            if frontend is None:
                mailbox.fail(error or self.away())
                return
            if error is not None:
                log.info("a request goes to the frontend at %s: %s", frontend.address, error)
            instance_id = frontend.instance_id
            frontend.num_coming += 1
            try:
                for call in mailbox.calls:
                    await _send_files(frontend, call, context)
                # One that was restarted meanwhile does not have the files.
                if not mailbox.is_closed and frontend.takes_calls and frontend.instance_id == instance_id:
                    frontend.start(mailbox, context)
                    return
                error = ServiceUnavailableError(_AWAY)
            except ServiceUnavailableError as failure:
                error = failure
            except TriptychError as failure:
                mailbox.fail(failure)
            except Exception as failure:
                # This may run in a background task. Without a failed mailbox the request would wait forever.
                log.exception("unexpected error")
                mailbox.fail(InternalError(f"internal error ({type(failure).__name__}); the gateway's log has the details"))
            finally:
                frontend.num_coming -= 1


async def _send_files(frontend: FrontendConnection, call: FrontendCall, context: common_pb2.CallContext) -> None:
    """Put the files of a call into its request, or upload them. Raises TriptychError."""
    is_small = sum(len(file.content) for file in call.files) <= MAX_INLINE_FILE_BYTES
    for file in call.files:
        if is_small:
            file.item.data = file.content
        else:
            file.item.upload_id = await answered(
                partial(FrontendConnection.upload, content=file.content, context=context), frontend
            )


def _sticky_key(calls: Sequence[FrontendCall]) -> bytes | None:
    """The first media name (`uuid`) in the request. Only a frontend that has seen the name knows its content."""
    for call in calls:
        if isinstance(call.request, generation_pb2.ChatRequest):
            for message in call.request.messages:
                for part in message.content:
                    if part.media.uuid:
                        return part.media.uuid.encode()
    return None


async def answered(call: Callable[[FrontendConnection], Awaitable[T]], frontend: FrontendConnection) -> T:
    """Make a unary call. Raises TriptychError; ServiceUnavailableError also if the channel was closed during the call."""
    try:
        return await call(frontend)
    except grpc.aio.AioRpcError as error:
        raise _translated(error, frontend.address) from None
    except (grpc.aio.UsageError, asyncio.CancelledError) as error:
        if was_closed(error):
            raise ServiceUnavailableError(_AWAY) from None
        raise


def _translated(error: grpc.aio.AioRpcError, address: str) -> TriptychError:
    """The frontend's own error, or a client-facing error for a transport error."""
    if has_details(error):
        return from_rpc_error(error)
    # gRPC calls a write on a connection that was just lost an internal error. A frontend's own internal error has details.
    if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.INTERNAL):
        log.warning("frontend at %s is away: %s", address, error.details())
        return ServiceUnavailableError(_AWAY)
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return InvalidRequestError(f"the request or its answer is larger than {MAX_MESSAGE_BYTES} bytes", limit=MAX_MESSAGE_BYTES)
    return from_rpc_error(error)
