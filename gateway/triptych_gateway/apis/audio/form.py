"""Reading multipart/form-data bodies, with the limits of JSON bodies."""

from __future__ import annotations

import re
from collections.abc import Iterator
from email.message import Message
from typing import Any, TypeVar, cast
from urllib.parse import unquote

from fastapi import Request
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from triptych_gateway.apis.audio.schema import UploadedFile, takes_list
from triptych_gateway.apis.json_body import JsonRequest
from triptych_gateway.file_parts import FileParts
from triptych_gateway.state import gateway_of, grant_of
from triptych_gateway.wire.errors import InvalidBodyError
from triptych_gateway.wire.schema import Schema

_MAX_PARTS = 1024
_MAX_HEADER_BYTES = 4096
_OPTION = re.compile(r'\s*;\s*([\w-]+\*?)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s;"]+))\s*')
_ESCAPED = re.compile(r"\\(.)")
Form = TypeVar("Form", bound=Schema)


async def read_form(request: Request, schema: type[Form]) -> Form:
    """The form of a request whose route is a JsonRoute, which limits its size and memory.

    Raises:
        HTTPException: the body is no form.
        InvalidBodyError: a field is missing, unknown or wrong.
    """
    body = await request.body()
    values = _values(parse_form(body, request.headers.get("content-type", "")), schema)
    grant_of(request).use_model(values.get("model"), gateway_of(request).served_models)
    # The files have been copied out of the body. It would stay in memory until the answer is complete.
    cast(JsonRequest, request).drop_body()
    request.state.files = FileParts(b"")
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        raise InvalidBodyError(error, values) from None


def _values(fields: Iterator[tuple[str, str | UploadedFile]], schema: type[Schema]) -> dict[str, Any]:
    """The fields by name. Clients send lists as several fields of a name, and put [] behind it."""
    values: dict[str, Any] = {}
    for given_name, value in fields:
        name = given_name.removesuffix("[]")
        if takes_list(schema, name):
            values.setdefault(name, []).append(value)
        elif name in values:
            raise HTTPException(400, f"the form has the field {name[:100]!r} twice")
        else:
            values[name] = value
    return values


def parse_form(body: bytes | bytearray, content_type: str) -> Iterator[tuple[str, str | UploadedFile]]:
    """Name and value of each field. A field with a filename is a file. Raises HTTPException."""
    delimiter = _delimiter(content_type)
    position = body.find(delimiter)
    for _ in range(_MAX_PARTS):
        if position < 0:
            raise HTTPException(400, "the form is cut short or damaged")
        position += len(delimiter)
        if body[position : position + 2] == b"--":
            return
        head_end = body.find(b"\r\n\r\n", position, position + _MAX_HEADER_BYTES)
        # An empty field ends where its content would begin.
        end = body.find(b"\r\n" + delimiter, head_end + 4) if head_end >= 0 else -1
        if end < 0:
            raise HTTPException(400, "the form is cut short or damaged")
        yield _field(body[position:head_end], bytes(memoryview(body)[head_end + 4 : end]))
        position = end + 2
    raise HTTPException(400, f"the form has more than {_MAX_PARTS} fields")


def _delimiter(content_type: str) -> bytes:
    header = Message()
    header["content-type"] = content_type
    boundary = header.get_param("boundary")
    if header.get_content_type() != "multipart/form-data" or not isinstance(boundary, str) or not boundary:
        raise HTTPException(400, "the body must be a form; send it with content-type: multipart/form-data and a boundary")
    return b"--" + boundary.encode("latin-1", "replace")


def _field(head: bytes | bytearray, content: bytes) -> tuple[str, str | UploadedFile]:
    try:
        options = _options(head.decode())
        if "name" not in options:
            raise HTTPException(400, "the form has a field without a name")
        filename = options.get("filename*", options.get("filename"))
        return options["name"], UploadedFile(filename, content) if filename is not None else content.decode()
    except UnicodeDecodeError:
        raise HTTPException(400, "the form has a field that is not UTF-8") from None


def _options(head: str) -> dict[str, str]:
    """The options of a field's Content-Disposition. Python's own parser of headers takes the square of their length."""
    options: dict[str, str] = {}
    for line in head.split("\r\n"):
        name, _, value = line.partition(":")
        if name.strip().lower() != "content-disposition":
            continue
        position = len(value.partition(";")[0])
        while option := _OPTION.match(value, position):
            position = option.end()
            key, quoted, plain = option.groups()
            text = plain if quoted is None else _ESCAPED.sub(r"\1", quoted)
            options[key.lower()] = unquote(text.rpartition("'")[2]) if key.endswith("*") else text
        if position < len(value):
            raise HTTPException(400, "the form has a field with a damaged header")
    return options
