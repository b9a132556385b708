"""Streams of the client for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Generic, Self

import grpc
from google.protobuf.message import Message

from triptych.accumulators import ChatAccumulator, CompleteAccumulator
from triptych.client.calls import Call, check_size, media_reports
from triptych.client.streams import AccumulatorT, ResponseT
from triptych.errors import TriptychError
from triptych.v1 import generation_pb2


def is_cancelled() -> bool:
    """Whether somebody cancels the current task. gRPC raises CancelledError also where only the call was cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def unary(method: Callable[..., Any], request: Message, call: Call) -> Any:
    """The response of a call that answers once. Raises TriptychError."""
    check_size(request)
    try:
        rpc = method(request, timeout=call.timeout_s, metadata=call.metadata)
        response = await rpc
        call.answered(await rpc.trailing_metadata())
    except grpc.RpcError as error:
        raise call.error(error) from error
    except asyncio.CancelledError as error:
        if is_cancelled():
            raise
        raise call.aborted() from error
    return response


class AsyncStream(Generic[ResponseT, AccumulatorT]):
    """The responses of one call as they come. An asynchronous iterator, and a context manager that ends the call.

    A stream that is closed, left by its `async with`, or no longer referenced cancels its call, and so does the cancellation of the
    task that reads it. The server then stops its work. A reader that pauses makes the server wait.
    """

    def __init__(self, rpc: Any, call: Call, accumulator: AccumulatorT) -> None:
        self._rpc = rpc
        self._call = call
        self._accumulator: AccumulatorT = accumulator
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
    def request_id(self) -> str:
        """The `x-request-id` that was sent."""
        return self._call.request_id

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ResponseT:
        """The next response. After `close`, the stream ends as if the server had ended it.

        Raises:
            TriptychError: the call failed, or was cancelled with an earlier read. What came before is kept in `response`.
        """
        try:
            response = await self._next()
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

    async def text_deltas(self, index: int = 0) -> AsyncIterator[str]:
        """The pieces of text of one choice as they come: no reasoning, no tool calls, and no empty pieces."""
        async for response in self:
            for delta in response.choices:
                if delta.text and delta.index == index:
                    yield delta.text

    async def until_done(self) -> Self:
        """Read to the end, and return the stream, whose `response` is then complete."""
        async for _ in self:
            pass
        return self

    async def trailing_media(self) -> list[generation_pb2.MediaReport]:
        """The reports on media in the trailing metadata. Empty until the stream has ended, and if they are too long for it."""
        return media_reports(await self._rpc.trailing_metadata()) if self._rpc.done() else []

    def close(self) -> None:
        """Cancel the call, unless it has ended. May be called again."""
        self._is_closed = True
        self._rpc.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


class AsyncChatStream(AsyncStream[generation_pb2.ChatStreamResponse, ChatAccumulator]):
    """The responses of `AsyncClient.chat_stream`."""

    @property
    def response(self) -> generation_pb2.ChatResponse:
        """What has been read so far, merged into the answer that `chat` gives: a new message each time."""
        return self._accumulator.response


class AsyncCompleteStream(AsyncStream[generation_pb2.CompleteStreamResponse, CompleteAccumulator]):
    """The responses of `AsyncClient.complete_stream`."""

    @property
    def response(self) -> generation_pb2.CompleteResponse:
        """What has been read so far, merged into the answer that `complete` gives: a new message each time."""
        return self._accumulator.response
