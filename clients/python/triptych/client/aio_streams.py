"""Streams of the client for asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Self

from triptych.accumulators import ResponseT, StreamResponseT
from triptych.client.aio_rpc import AioResponses
from triptych.v1 import generation_pb2

#: Trailing metadata with reports on media.
_MEDIA_KEY = "triptych-media-bin"


class AsyncStream(AioResponses[StreamResponseT, ResponseT]):
    """The responses of one call as they come. An asynchronous iterator, and a context manager that ends the call.

    A stream that is closed, left by its `async with`, or no longer referenced cancels its call, and the server stops its work. A
    reader that pauses makes the server wait. Cancelling the task that reads a stream cancels its call, too.
    """

    @property
    def request_id(self) -> str:
        """The `x-request-id` that was sent."""
        return self._call.request_id

    @property
    def response(self) -> ResponseT:
        """What has been read so far, merged into the answer that the unary call gives: a new message each time."""
        return self._accumulator.response

    def __aiter__(self) -> Self:
        return self

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
        entries = (await self._rpc.trailing_metadata() if self._has_ended else None) or ()
        return [generation_pb2.MediaReport.FromString(value) for key, value in entries if key == _MEDIA_KEY]

    def close(self) -> None:
        """Cancel the call, unless it has ended. May be called again."""
        self._is_closed = True
        self._rpc.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


class AsyncChatStream(AsyncStream[generation_pb2.ChatStreamResponse, generation_pb2.ChatResponse]):
    """The responses of `AsyncClient.chat_stream`."""


class AsyncCompleteStream(AsyncStream[generation_pb2.CompleteStreamResponse, generation_pb2.CompleteResponse]):
    """The responses of `AsyncClient.complete_stream`."""
