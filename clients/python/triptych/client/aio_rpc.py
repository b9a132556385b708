"""What the client for asyncio does with a call of `grpc.aio`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic

import grpc
from google.protobuf.message import Message

from triptych.accumulators import Accumulator, ResponseT, StreamResponseT
from triptych.client.calls import Call
from triptych.errors import TriptychError


def is_cancelled() -> bool:
    """Whether somebody cancels the current task. gRPC raises CancelledError also where only the call was cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def unary(call: Call, method: Callable[..., Any], request: Message) -> Any:
    """The response of a call that answers once. Raises TriptychError."""
    try:
        rpc = call.start(method, request)
        response = await rpc
        call.answered(await rpc.trailing_metadata())
    except grpc.RpcError as error:
        raise call.error(error) from error
    except asyncio.CancelledError as error:
        if is_cancelled():
            raise
        raise call.aborted() from error
    return response


class AioResponses(Generic[StreamResponseT, ResponseT]):
    """The responses of a call that streams, and what they add up to."""

    def __init__(self, rpc: Any, call: Call, accumulator: Accumulator[StreamResponseT, ResponseT]) -> None:
        self._rpc = rpc
        self._call = call
        self._accumulator: Accumulator[StreamResponseT, ResponseT] = accumulator
        self._is_closed = False
        #: Why the call ended before its last response. gRPC says so once, and then only that nothing more comes.
        self._error: TriptychError | None = None
        self._next = rpc.__aiter__().__anext__
        self._loop = asyncio.get_running_loop()

    def __del__(self) -> None:
        # gRPC cancels calls that are no longer referenced, but its own tasks may reference this one. Any thread may come here.
        if not self._rpc.done() and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._rpc.cancel)

    @property
    def _has_ended(self) -> bool:
        return bool(self._rpc.done())

    async def __anext__(self) -> StreamResponseT:
        """The next response. After `close`, the stream ends as if the server had ended it.

        Raises:
            TriptychError: the call failed, or was cancelled with an earlier read. What came before is kept in `response`.
        """
        try:
            response: StreamResponseT = await self._next()
        except StopAsyncIteration:
            if self._error is None or self._is_closed:
                raise
            raise self._error from None
        except grpc.RpcError as error:
            if self._is_closed:
                raise StopAsyncIteration from None
            self._error = self._call.error(error)
            raise self._error from error
        except asyncio.CancelledError as error:
            if is_cancelled():
                self._error = self._call.aborted("the call was cancelled with the task that read its stream")
                raise
            if self._is_closed:
                raise StopAsyncIteration from None
            self._error = self._call.aborted()
            raise self._error from error
        self._accumulator.add(response)
        return response
