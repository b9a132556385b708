"""Streams of the client for threads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, Self, TypeVar

import grpc
from google.protobuf.message import Message

from triptych.accumulators import ChatAccumulator, CompleteAccumulator
from triptych.client.calls import Call, check_size, media_reports
from triptych.v1 import generation_pb2

ResponseT = TypeVar("ResponseT", generation_pb2.ChatStreamResponse, generation_pb2.CompleteStreamResponse)
AccumulatorT = TypeVar("AccumulatorT", ChatAccumulator, CompleteAccumulator)


def unary(method: Any, request: Message, call: Call) -> Any:
    """The response of a call that answers once. Raises TriptychError."""
    check_size(request)
    try:
        response, rpc = method.with_call(request, timeout=call.timeout_s, metadata=call.metadata)
    except grpc.RpcError as error:
        raise call.error(error) from error
    call.answered(rpc.trailing_metadata())
    return response


class Stream(Generic[ResponseT, AccumulatorT]):
    """The responses of one call as they come. An iterator, and a context manager that ends the call.

    A stream that is closed, left by its `with`, or no longer referenced cancels its call, and the server stops its work. A reader
    that pauses makes the server wait. One thread reads a stream; any thread may close it.
    """

    def __init__(self, rpc: Any, call: Call, accumulator: AccumulatorT) -> None:
        self._rpc = rpc
        self._call = call
        self._accumulator: AccumulatorT = accumulator
        self._is_closed = False

    @property
    def request_id(self) -> str:
        """The `x-request-id` that was sent."""
        return self._call.request_id

    def __iter__(self) -> Iterator[ResponseT]:
        return self

    def __next__(self) -> ResponseT:
        """The next response. After `close`, the stream ends as if the server had ended it.

        Raises:
            TriptychError: the call failed. What came before is kept in `response`.
        """
        try:
            response: ResponseT = next(self._rpc)
        except grpc.RpcError as error:
            if self._is_closed:
                raise StopIteration from None
            raise self._call.error(error) from error
        self._accumulator.add(response)  # type: ignore[arg-type]
        return response

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
        return [] if self._rpc.is_active() else media_reports(self._rpc.trailing_metadata())

    def close(self) -> None:
        """Cancel the call, unless it has ended. May be called again, by any thread, and by a signal handler."""
        self._is_closed = True
        self._rpc.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ChatStream(Stream[generation_pb2.ChatStreamResponse, ChatAccumulator]):
    """The responses of `Client.chat_stream`."""

    @property
    def response(self) -> generation_pb2.ChatResponse:
        """What has been read so far, merged into the answer that `chat` gives: a new message each time."""
        return self._accumulator.response


class CompleteStream(Stream[generation_pb2.CompleteStreamResponse, CompleteAccumulator]):
    """The responses of `Client.complete_stream`."""

    @property
    def response(self) -> generation_pb2.CompleteResponse:
        """What has been read so far, merged into the answer that `complete` gives: a new message each time."""
        return self._accumulator.response
