"""Reads a form with one file, which goes to the disk as it arrives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fastapi import Request
from pydantic import ValidationError
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from triptych_gateway.apis.calls import check_origin
from triptych_gateway.apis.files.schema import ReceivedFile
from triptych_gateway.apis.json_body import BodyReader
from triptych_gateway.stores.disk import Arrival
from triptych_gateway.wire.errors import ClientDisconnectedError, InvalidBodyError
from triptych_gateway.wire.schema import Schema

#: Most fields of a form, and most bytes of all that are no file, with boundaries and headers.
_MAX_FIELDS, MAX_FIELD_BYTES = 64, 64 << 10
#: Longest time for a file to arrive, in seconds. It keeps the pace of other bodies.
_TIMEOUT_S = 3600.0
Form = TypeVar("Form", bound=Schema)


@dataclass
class _Part:
    """A field of the form. The content of a file is not here."""

    headers: dict[str, str] = field(default_factory=dict)
    name: str = ""
    filename: str | None = None
    content: bytearray = field(default_factory=bytearray)
    num_bytes: int = 0


async def read_file_form(request: Request, schema: type[Form], arrival: Arrival, max_bytes: int) -> Form:
    """The form of a request. The content of its file is written to `arrival`.

    Args:
        max_bytes: of the file.

    Raises:
        HTTPException: a page of another site sends it, or the body is no form, has several files, is too large or too slow.
        ClientDisconnectedError: the client went away meanwhile.
        InvalidBodyError: a field is missing, unknown or wrong.
    """
    # A browser sends a form of any page without asking whether it may.
    check_origin(request)
    limit = max_bytes + MAX_FIELD_BYTES
    too_large = HTTPException(413, f"the body is larger than {limit} bytes")
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdecimal() and int(length[:20]) > limit:
        raise too_large
    reader, stream, num_read = BodyReader(request.stream(), _TIMEOUT_S), _FormStream(request), 0
    try:
        while (chunk := await reader.next(num_read, None)) is not None:
            num_read += len(chunk)
            if num_read > limit:
                raise too_large
            for content in stream.feed(chunk):
                if arrival.num_bytes + len(content) > max_bytes:
                    raise HTTPException(413, f"the file is larger than {max_bytes} bytes")
                await arrival.write(content)
    except ClientDisconnect:
        raise ClientDisconnectedError from None
    values = _values(stream.end())
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        raise InvalidBodyError(error, values) from None


class _FormStream:
    """Splits a form into its fields while it arrives."""

    def __init__(self, request: Request) -> None:
        kind, options = parse_options_header(request.headers.get("content-type", ""))
        if kind != b"multipart/form-data" or not options.get(b"boundary"):
            message = "the body must be a form; send it with content-type: multipart/form-data and a boundary"
            raise HTTPException(400, message)
        self._parts: list[_Part] = []
        self._header = [bytearray(), bytearray()]
        self._contents: list[bytes] = []
        self._num_bytes, self._is_complete = 0, False
        try:
            self._parser = MultipartParser(
                options[b"boundary"],
                {
                    "on_part_begin": self._begin,
                    "on_header_field": lambda data, start, end: self._header[0].extend(data[start:end]),
                    "on_header_value": lambda data, start, end: self._header[1].extend(data[start:end]),
                    "on_header_end": self._end_header,
                    "on_headers_finished": self._end_headers,
                    "on_part_data": self._take,
                    "on_end": self._finish,
                },
            )
        except FormParserError as error:
            raise _damaged(error) from None

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Read a chunk. Yields what it has of the file."""
        try:
            self._parser.write(chunk)
        except FormParserError as error:
            raise _damaged(error) from None
        contents, self._contents = self._contents, []
        yield from contents

    def end(self) -> list[_Part]:
        """All fields, once everything was read."""
        if not self._is_complete:
            raise HTTPException(400, "the form is cut short or damaged")
        return self._parts

    def _finish(self) -> None:
        self._is_complete = True

    def _begin(self) -> None:
        if len(self._parts) >= _MAX_FIELDS:
            raise HTTPException(400, f"the form has more than {_MAX_FIELDS} fields")
        self._parts.append(_Part())

    def _end_header(self) -> None:
        name, value = self._header
        self._count(len(name) + len(value))
        self._parts[-1].headers[name.decode("latin-1").lower()] = value.decode("utf-8", "replace")
        self._header = [bytearray(), bytearray()]

    def _end_headers(self) -> None:
        part = self._parts[-1]
        _, options = parse_options_header(part.headers.get("content-disposition", "").encode())
        if not options.get(b"name"):
            raise HTTPException(400, "the form has a field without a name")
        part.name = options[b"name"].decode("utf-8", "replace")
        if b"filename" in options:
            part.filename = options[b"filename"].decode("utf-8", "replace")
            if sum(one.filename is not None for one in self._parts) > 1:
                raise HTTPException(400, "the form has more than one file")

    def _take(self, data: bytes, start: int, end: int) -> None:
        part = self._parts[-1]
        part.num_bytes += end - start
        if part.filename is not None:
            self._contents.append(data[start:end])
            return
        self._count(end - start)
        part.content += data[start:end]

    def _count(self, num_bytes: int) -> None:
        self._num_bytes += num_bytes
        if self._num_bytes > MAX_FIELD_BYTES:
            raise HTTPException(400, f"the form has more than {MAX_FIELD_BYTES} bytes beside its file")


def _values(parts: list[_Part]) -> dict[str, Any]:
    """The fields by name. `a[b]` is the field b of the object a."""
    values: dict[str, Any] = {}
    for part in parts:
        try:
            value = ReceivedFile(part.filename, part.num_bytes) if part.filename is not None else part.content.decode()
        except UnicodeDecodeError:
            raise HTTPException(400, "the form has a field that is not UTF-8") from None
        name, bracket, inner = part.name.partition("[")
        place = values.setdefault(name, {}) if bracket and inner.endswith("]") else values
        key = inner[:-1] if place is not values else part.name
        if not isinstance(place, dict) or key in place:
            raise HTTPException(400, f"the form has the field {part.name[:100]!r} twice")
        place[key] = value
    return values


def _damaged(error: FormParserError) -> HTTPException:
    return HTTPException(400, f"the form is cut short or damaged ({error})"[:300])
