"""A look at a serialized message before it is parsed.

protobuf parses without letting other threads run, and an empty message of two bytes takes fifty in memory. So 32 MiB of them would
stop every stream of the gateway for a second and take a gigabyte. A message that is large because of its files is fine.
"""

from __future__ import annotations

from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from triptych.errors import InvalidRequestError

M = TypeVar("M", bound=Message)
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
