"""Sends the calls of HTTP requests to frontends: which one, and to another one where the first did not answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

import grpc
from triptych_common.cluster.pool import Pool
from triptych_common.errors import InternalError, InvalidRequestError, ServiceUnavailableError, TriptychError
from triptych_common.pb import common_pb2, generation_pb2
from triptych_common.rpc.channels import MAX_MESSAGE_BYTES, was_closed
from triptych_common.rpc.status import from_rpc_error, has_details

from triptych_gateway.frontends.calls import Calls, FrontendCall, Response
from triptych_gateway.frontends.connection import FrontendConnection

log = logging.getLogger(__name__)
T = TypeVar("T")
#: Files of a request that are together no larger travel in its call: an upload would cost a round trip more.
MAX_INLINE_FILE_BYTES = 256 << 10
#: A request with named media goes to the frontend that the name belongs to, which may know it, unless that frontend has more than
#: this many calls, and twice as many as the least loaded.
_MAX_STICKY_LOAD = 8
_AWAY = "the model's frontend is away; try again"


class FrontendRouter:
    """Chooses a frontend for each request."""

    def __init__(self, pool: Pool[FrontendConnection]) -> None:
        self._pool = pool
        self._placing: set[asyncio.Task[None]] = set()

    async def generate(
        self, calls: Sequence[FrontendCall], context: common_pb2.CallContext, on_accepted: Callable[[], None] = lambda: None
    ) -> AsyncGenerator[list[tuple[int, Response]], None]:
        """What is new in the calls, each response with the place of its call.

        Nothing is sent before the first item is asked for. The first error ends all calls; closing the generator cancels them.

        Args:
            on_accepted: called once: when the files of the calls are not held any more.
        """
        tried: set[FrontendConnection] = set()

        def place_again(mailbox: Calls, error: TriptychError) -> bool:
            if self.choose(mailbox.calls, tried) is None:
                return False
            task = asyncio.create_task(self._place(mailbox, context, tried, error), name="calls to another frontend")
            self._placing.add(task)
            task.add_done_callback(self._placing.discard)
            return True

        mailbox = Calls(calls, place_again, on_accepted)
        del calls  # the mailbox lets go of the files when a frontend has answered
        try:
            await self._place(mailbox, context, tried, None)
            while responses := await mailbox.next():
                yield responses
        finally:
            mailbox.close()

    def choose(self, calls: Sequence[FrontendCall], tried: set[FrontendConnection]) -> FrontendConnection | None:
        """The frontend for a request; None when there is none."""
        least = self._pool.least_loaded(frozenset(tried))
        if least is None:
            # One without an engine says why it cannot.
            return next((one for one in self._pool.connections if one.takes_calls and one not in tried), None)
        key = _sticky_key(calls)
        if key is None:
            return least
        own = next((one for one in self._pool.ranked(key) if one not in tried), least)
        return least if own.in_doubt.is_set() or own.load > _MAX_STICKY_LOAD + 2 * least.load else own

    def away(self) -> ServiceUnavailableError:
        """The error for a request that finds no frontend. Clients are not told the addresses, the log is."""
        log.warning("%s", self._pool.none_left())
        return ServiceUnavailableError(_AWAY, retry_after_s=1.0)

    async def close(self) -> None:
        """Give up what is being placed."""
        for task in self._placing:
            task.cancel()
        await asyncio.gather(*self._placing, return_exceptions=True)

    async def _place(
        self,
        mailbox: Calls,
        context: common_pb2.CallContext,
        tried: set[FrontendConnection],
        error: TriptychError | None,
    ) -> None:
        """Hand the calls to a frontend, or fail them with the error of the last one that was tried."""
        await self._pool.until_tried()
        while not mailbox.is_closed:
            frontend = self.choose(mailbox.calls, tried)
            if frontend is None:
                mailbox.fail(error or self.away())
                return
            if error is not None:
                log.info("a request goes to the frontend at %s: %s", frontend.address, error)
            tried.add(frontend)
            frontend.num_coming += 1
            try:
                for call in mailbox.calls:
                    await _send_files(frontend, call, context)
                if not mailbox.is_closed and frontend.takes_calls:
                    frontend.start(mailbox, context)
                    return
                error = ServiceUnavailableError(_AWAY)
            except ServiceUnavailableError as failure:
                error = failure
            except TriptychError as failure:
                mailbox.fail(failure)
            except Exception as failure:
                # Nobody else would hear of it, and the request would wait for ever.
                log.exception("unexpected error")
                mailbox.fail(InternalError(f"internal error ({type(failure).__name__}); the gateway's log has the details"))
            finally:
                frontend.num_coming -= 1


async def _send_files(frontend: FrontendConnection, call: FrontendCall, context: common_pb2.CallContext) -> None:
    """Put the files of a call where the frontend finds them. Raises TriptychError."""
    is_small = sum(len(file.content) for file in call.files) <= MAX_INLINE_FILE_BYTES
    for file in call.files:
        if is_small:
            file.item.data = file.content
        else:
            file.item.upload_id = await answered(
                partial(FrontendConnection.upload, content=file.content, context=context), frontend
            )


def _sticky_key(calls: Sequence[FrontendCall]) -> bytes | None:
    """The first name of media in the request: the frontend that saw the name knows what it stands for."""
    for call in calls:
        if isinstance(call.request, generation_pb2.ChatRequest):
            for message in call.request.messages:
                for part in message.content:
                    if part.media.uuid:
                        return part.media.uuid.encode()
    return None


async def answered(call: Callable[[FrontendConnection], Awaitable[T]], frontend: FrontendConnection) -> T:
    """Make a unary call. Raises TriptychError: ServiceUnavailableError also where the connection was given up meanwhile."""
    try:
        return await call(frontend)
    except grpc.aio.AioRpcError as error:
        raise _translated(error, frontend.address) from None
    except (grpc.aio.UsageError, asyncio.CancelledError) as error:
        if was_closed(error):
            raise ServiceUnavailableError(_AWAY) from None
        raise


def _translated(error: grpc.aio.AioRpcError, address: str) -> TriptychError:
    """The frontend's own error, or what the transport's error means to a client."""
    if has_details(error):
        return from_rpc_error(error)
    if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        log.warning("frontend at %s is away: %s", address, error.details())
        return ServiceUnavailableError(_AWAY)
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return InvalidRequestError(f"the request or its answer is larger than {MAX_MESSAGE_BYTES} bytes", limit=MAX_MESSAGE_BYTES)
    return from_rpc_error(error)
