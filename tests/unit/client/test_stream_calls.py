"""Streams use no more of a call than what gRPC promises of those that interceptors return."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
from triptych.accumulators import ChatAccumulator
from triptych.client.calls import Call
from triptych.client.streams import ChatStream
from triptych.v1 import generation_pb2


class CallOfAnInterceptor(grpc.Call):  # type: ignore[misc]
    """A call as `grpc.Call` has it, and an iterator of its responses."""

    def __init__(self, responses: Iterator[generation_pb2.ChatStreamResponse]) -> None:
        self._responses, self._is_active = responses, True

    def __iter__(self) -> CallOfAnInterceptor:
        return self

    def __next__(self) -> generation_pb2.ChatStreamResponse:
        try:
            return next(self._responses)
        except StopIteration:
            self._is_active = False
            raise

    def is_active(self) -> bool:
        return self._is_active

    def trailing_metadata(self) -> list[tuple[str, bytes]]:
        return [("triptych-media-bin", generation_pb2.MediaReport(num_tokens=3).SerializeToString())]

    def cancel(self) -> bool:
        return False

    def time_remaining(self) -> None: ...
    def add_callback(self, callback: object) -> bool:
        return False

    def initial_metadata(self) -> list[tuple[str, bytes]]:
        return []

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.OK

    def details(self) -> str:
        return ""


def test_the_reports_on_media_come_with_the_end_of_any_call() -> None:
    responses = [generation_pb2.ChatStreamResponse(choices=[generation_pb2.ChoiceDelta(text=text)]) for text in "ab"]
    stream = ChatStream(CallOfAnInterceptor(iter(responses)), Call("id", None, (), None), ChatAccumulator())
    assert stream.trailing_media() == []
    assert [response.choices[0].text for response in stream] == ["a", "b"]
    assert [report.num_tokens for report in stream.trailing_media()] == [3]
