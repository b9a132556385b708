"""The media files in the requests of gRPC clients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from google.protobuf.message import Message
from triptych.v1 import common_pb2, generation_pb2, preprocess_pb2

from triptych_gateway.rpc.wire import parse

M = TypeVar("M", bound=Message)
Item = tuple[str, common_pb2.MediaItem]
#: A media item of a request with its path, and its file if the request had that.
Media = tuple[str, common_pb2.MediaItem, bytes | None]


def _media_of(request: Message) -> Iterator[Item]:
    """The media items of a request of any method, each with its path."""
    one: Any = request
    if isinstance(one, generation_pb2.ChatStreamRequest):
        one = one.chat
    elif isinstance(one, generation_pb2.CompleteStreamRequest):
        one = one.complete
    elif isinstance(one, preprocess_pb2.PreprocessRequest):
        one = one.chat if one.HasField("chat") else one.complete
    if isinstance(one, generation_pb2.ChatRequest):
        yield from _in_messages("messages", one.messages)
    elif isinstance(one, generation_pb2.CompleteRequest):
        yield from ((f"media[{number}]", item) for number, item in enumerate(one.media))
    elif isinstance(one, generation_pb2.ScoreRequest):
        yield from _in_inputs("queries", one.queries)
        yield from _in_inputs("documents", one.documents)
    elif isinstance(one, generation_pb2.EmbedRequest | generation_pb2.ClassifyRequest):
        yield from _in_inputs("inputs", one.inputs)


def _in_inputs(path: str, inputs: Iterable[generation_pb2.EmbedInput]) -> Iterator[Item]:
    for number, one in enumerate(inputs):
        if one.HasField("messages"):
            yield from _in_messages(f"{path}[{number}].messages.messages", one.messages.messages)


def _in_messages(path: str, messages: Iterable[generation_pb2.ChatMessage]) -> Iterator[Item]:
    for number, message in enumerate(messages):
        for place, part in enumerate(message.content):
            if part.HasField("media"):
                yield f"{path}[{number}].content[{place}].media", part.media


def parse_apart(cls: type[M], content: bytes) -> tuple[M, list[Media]]:
    """A request without its files, and its media. Raises what `parse` raises.

    protobuf frees the bytes of a field only with the whole message, which is kept until the call has ended. So the message that is
    returned never had them.
    """
    message = parse(cls, content)
    files: dict[str, bytes] = {}
    for path, item in _media_of(message):
        if item.HasField("data"):
            files[path] = item.data
            item.data = b""  # the item still has a source
    if files:
        message = cls.FromString(message.SerializeToString())
    return message, [(path, item, files.get(path)) for path, item in _media_of(message)]
