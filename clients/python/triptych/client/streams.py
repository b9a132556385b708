"""Streams of the client for threads. tools/gen_sync_client.py makes it from aio_streams.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

from triptych.accumulators import ResponseT, StreamResponseT
from triptych.client.rpc import Responses
from triptych.v1 import generation_pb2

#: Trailing metadata with reports on media.
_MEDIA_KEY = "triptych-media-bin"


class Stream(Responses[StreamResponseT, ResponseT]):
    """The responses of one call as they come. An iterator, and a context manager that ends the call.

    A stream that is closed, left by its `with`, or no longer referenced cancels its call, and the server stops its work. A
    reader that pauses makes the server wait. One thread reads a stream; any thread may close it.
    """

    @property
    def request_id(self) -> str:
        """The `x-request-id` that was sent."""
        return self._call.request_id

    @property
    def response(self) -> ResponseT:
        """What has been read so far, merged into the answer that the unary call gives: a new message each time."""
        return self._accumulator.response

    def __iter__(self) -> Self:
        return self

    def text_deltas(self, index: int = 0) -> Iterator[str]:
        """The pieces of text of one choice as they come: no reasoning, no tool calls, and no empty pieces."""
        for response in self:
            for delta in response.choices:
                if delta.text and delta.index == index:
                    yield delta.text

    def until_done(self) -> Self:
        """Read to the end, and return the stream, whose `response` is then complete."""
        for _ in self:
            pass
        return self

    def trailing_media(self) -> list[generation_pb2.MediaReport]:
        """The reports on media in the trailing metadata. Empty until the stream has ended, and if they are too long for it."""
        entries = (self._rpc.trailing_metadata() if self._has_ended else None) or ()
        return [generation_pb2.MediaReport.FromString(value) for key, value in entries if key == _MEDIA_KEY]

    def close(self) -> None:
        """Cancel the call, unless it has ended. May be called again, by any thread, and by a signal handler."""
        self._is_closed = True
        self._rpc.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ChatStream(Stream[generation_pb2.ChatStreamResponse, generation_pb2.ChatResponse]):
    """The responses of `Client.chat_stream`."""


class CompleteStream(Stream[generation_pb2.CompleteStreamResponse, generation_pb2.CompleteResponse]):
    """The responses of `Client.complete_stream`."""
