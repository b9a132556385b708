"""The requests of gRPC clients: a look at a serialized message before it is parsed, and the media files in it.

protobuf parses without letting other threads run, and an empty message of two bytes takes fifty in memory. So 32 MiB of them would
stop every stream of the gateway for a second and take a gigabyte. A message that is large because of its files is fine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from triptych.errors import InvalidRequestError
from triptych.v1 import common_pb2, generation_pb2

M = TypeVar("M", bound=Message)
Item = tuple[str, common_pb2.MediaItem]
#: A media item of a request with its path, and its file if the request had that.
Media = tuple[str, common_pb2.MediaItem, bytes | None]
#: A smaller message is parsed at once. It takes a few milliseconds at most.
_SMALL_BYTES = 64 << 10
#: Most bytes of a message beside its files, and most fields.
MAX_OTHER_BYTES, MAX_FIELDS = 8 << 20, 100_000
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5


def parse(cls: type[M], content: bytes) -> M:
    """The message.

    Raises:
        InvalidRequestError: it is no such message, or it has too many fields, or too many bytes beside its files.
    """
    try:
        if len(content) > _SMALL_BYTES:
            _check(cls.DESCRIPTOR, content)
        return cls.FromString(content)
    except (DecodeError, IndexError):
        raise InvalidRequestError(f"the message is no {cls.DESCRIPTOR.full_name}") from None


def _check(descriptor: Any, content: bytes) -> None:
    """Walk over the fields of a message and of the messages in it. Raises IndexError where it ends too early."""
    num_fields, num_file_bytes = 0, 0
    waiting = [(descriptor, 0, len(content))]
    while waiting:
        of, at, end = waiting.pop()
        while at < end:
            num_fields += 1
            if num_fields > MAX_FIELDS:
                message = f"the message has more than {MAX_FIELDS} fields; messages, parts and lists in it count, too"
                raise InvalidRequestError(message, limit=MAX_FIELDS)
            tag, at = _varint(content, at)
            start, at = _value(content, tag & 7, at)
            if at > end:
                raise IndexError
            field: FieldDescriptor | None = of.fields_by_number.get(tag >> 3)
            if field is None or tag & 7 != _LENGTH:
                continue
            if field.message_type is not None:
                waiting.append((field.message_type, start, at))
            elif field.type == FieldDescriptor.TYPE_BYTES:
                num_file_bytes += at - start
    if len(content) - num_file_bytes > MAX_OTHER_BYTES:
        given = len(content) - num_file_bytes
        message = f"the message has {given} bytes beside its files, more than {MAX_OTHER_BYTES}"
        raise InvalidRequestError(message, limit=MAX_OTHER_BYTES, value=given)


def _value(content: bytes, wire_type: int, at: int) -> tuple[int, int]:
    """Where a field's value begins and ends."""
    if wire_type == _LENGTH:
        num_bytes, start = _varint(content, at)
        return start, start + num_bytes
    if wire_type == _VARINT:
        return at, _varint(content, at)[1]
    if wire_type in (_FIXED64, _FIXED32):
        return at, at + (8 if wire_type == _FIXED64 else 4)
    raise IndexError  # groups, which no message of ours has


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise IndexError


def _media_of(request: Message) -> Iterator[Item]:
    """The media items of a request of any method, each with its path."""
    # A request for a stream, or for a prompt, holds one for an answer.
    one: Any = next((value for field, value in request.ListFields() if field.name in ("chat", "complete")), request)
    yield from _in_messages("messages", getattr(one, "messages", ()))
    yield from ((f"media[{number}]", item) for number, item in enumerate(getattr(one, "media", ())))
    for name in ("queries", "documents", "inputs"):
        yield from _in_inputs(name, getattr(one, name, ()))


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
