"""The media files in the requests of gRPC clients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from triptych.v1 import common_pb2, generation_pb2

from triptych_gateway.frontends.calls import MediaFile
from triptych_gateway.frontends.router import MAX_INLINE_FILE_BYTES

Item = tuple[str, common_pb2.MediaItem]
Request = (
    generation_pb2.ChatRequest
    | generation_pb2.CompleteRequest
    | generation_pb2.EmbedRequest
    | generation_pb2.ClassifyRequest
    | generation_pb2.ScoreRequest
)


def media_of(request: Request) -> Iterator[Item]:
    """The media items of a request, each with its path."""
    if isinstance(request, generation_pb2.ChatRequest):
        yield from _in_messages("messages", request.messages)
    elif isinstance(request, generation_pb2.CompleteRequest):
        yield from ((f"media[{number}]", item) for number, item in enumerate(request.media))
    elif isinstance(request, generation_pb2.ScoreRequest):
        yield from _in_inputs("queries", request.queries)
        yield from _in_inputs("documents", request.documents)
    else:
        yield from _in_inputs("inputs", request.inputs)


def _in_inputs(path: str, inputs: Iterable[generation_pb2.EmbedInput]) -> Iterator[Item]:
    for number, one in enumerate(inputs):
        yield from _in_messages(f"{path}[{number}].messages.messages", one.messages.messages)


def _in_messages(path: str, messages: Iterable[generation_pb2.ChatMessage]) -> Iterator[Item]:
    for number, message in enumerate(messages):
        for place, part in enumerate(message.content):
            if part.HasField("media"):
                yield f"{path}[{number}].content[{place}].media", part.media


def files_apart(request: Request) -> list[MediaFile]:
    """Take the files out of a request, if they are too large to travel with it. They are uploaded before it."""
    items = [item for _, item in media_of(request) if item.HasField("data")]
    if sum(len(item.data) for item in items) <= MAX_INLINE_FILE_BYTES:
        return []
    files = [MediaFile(item, item.data) for item in items]
    for item in items:
        item.ClearField("data")
    return files
