"""Reading JSON bodies with limits on size and memory, and with strict JSON rules."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, cast

import orjson
from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from triptych.errors import QueueFullError

from triptych_gateway.body_budget import BodyHold
from triptych_gateway.file_parts import FileParts
from triptych_gateway.state import gateway_of, grant_of

#: Memory to read and decode a body, as a multiple of its length: its bytes, the decoded files, and the overhead of the allocator.
#: A body whose files contain escapes takes more for a moment.
MEMORY_FACTOR = 2.5

#: Longest pause within a body, in seconds. It is limited because the body holds memory that other requests wait for.
READ_TIMEOUT_S = 30.0

#: Limit on the commas and opening brackets of a body without its files. Each may be a JSON value, which takes about 50 times the
#: memory of its text. Parsing a million of them blocks the event loop for a fifth of a second. Of valid bodies, prompts of token
#: ids come nearest to the limit.
MAX_SEPARATORS = 1_000_000


class JsonRequest(Request):
    """A request whose body is parsed by orjson: UTF-8 only, no lone surrogates, no NaN, no duplicate names in an object.

    A body larger than the limit is refused with 413. A body waits while other bodies use all of the memory budget.
    """

    async def body(self) -> bytes:
        """The bytes of the body. JSON and forms are not copied to `bytes`: FastAPI only checks whether the body is empty."""
        if not hasattr(self, "_body"):
            gateway = gateway_of(self)
            limit = gateway.settings.max_body_bytes
            length = self.headers.get("content-length", "")
            num_bytes = int(length[:20]) if length.isascii() and length.isdecimal() else limit
            if length and num_bytes > limit:
                raise _too_large(limit)
            try:
                self.state.body_hold = await gateway.bodies.take(int(num_bytes * MEMORY_FACTOR))
            except QueueFullError as error:  # FastAPI re-raises only HTTPException
                raise HTTPException(429, error.message, {"retry-after": "1"}) from error
            body = bytearray()
            chunks = self.stream()
            while (chunk := await _next_chunk(chunks)) is not None:
                body += chunk
                if len(body) > limit:
                    raise _too_large(limit)
            kind = self.headers.get("content-type", "json")
            self._body = cast("bytes", body) if "json" in kind or "form-data" in kind else bytes(body)
        return self._body

    def drop_body(self) -> None:
        """Free the body's memory. Later calls of `body` return nothing."""
        self._body = b""

    async def json(self) -> Any:
        """The JSON value of the body. Names replace the files in it; the files are in `state.files`.

        Raises:
            orjson.JSONDecodeError: the body is not valid JSON. FastAPI handles it, because it is a `json.JSONDecodeError`.
            HTTPException: the JSON cannot be served.
        """
        if not hasattr(self, "_json"):
            files = FileParts(await self.body())
            if sum(map(files.rest.count, (b",", b"[", b"{"))) > MAX_SEPARATORS:
                raise HTTPException(400, f"the body has more than {MAX_SEPARATORS} commas and opening brackets beside its files")
            value = await files.run(lambda: _parsed(files.rest))
            grant_of(self).use_model(value.get("model") if isinstance(value, dict) else None, gateway_of(self).served_models)
            self._json = value
            files.rest = b""  # otherwise the body stays in memory until the answer is complete
            self.state.files = files
        return self._json


def _parsed(body: bytes | bytearray) -> Any:
    value = orjson.loads(body)
    check_names(body)
    return value


async def _next_chunk(chunks: AsyncGenerator[bytes, None]) -> bytes | None:
    """The next chunk of a body, or None at its end."""
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            return await anext(chunks, None)
    except TimeoutError:
        raise HTTPException(408, f"the body stopped: nothing came for {READ_TIMEOUT_S:g} s") from None


def files_of(request: Request) -> FileParts:
    """The files that were cut out of the request's body."""
    files: FileParts = request.state.files
    return files


def check_names(body: bytes | bytearray) -> None:
    """Refuse objects with duplicate names, because their meaning is ambiguous. Raises HTTPException."""
    try:
        json.loads(body, object_pairs_hook=_object)
    except _DuplicateNameError as error:
        raise HTTPException(400, f"the body has the name {str(error)[:100]!r} twice in one object") from None
    except RecursionError:
        raise HTTPException(400, "the body is nested too deeply") from None


class _DuplicateNameError(Exception):
    """An object has a duplicate name."""


def _object(pairs: list[tuple[str, Any]]) -> None:
    names = set()
    for name, _ in pairs:
        if name in names:
            raise _DuplicateNameError(name)
        names.add(name)


def _too_large(limit: int) -> HTTPException:
    return HTTPException(413, f"the body is larger than {limit} bytes")


class JsonRoute(APIRoute):
    """A route that reads its body with JsonRequest."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_json(request: Request) -> Response:
            json_request = JsonRequest(request.scope, request.receive)
            try:
                return await handle(json_request)
            finally:
                # Release the reservation, unless the answer took it over with `take_hold`.
                take_hold(json_request, 0)()

        return handle_json


def take_hold(request: Request, num_bytes: int) -> Callable[[], None]:
    """Take over the body's reservation, reduced to `num_bytes`, so that it outlives the handler. Returns its release function."""
    hold: BodyHold | None = getattr(request.state, "body_hold", None)
    if hold is None:
        return lambda: None
    request.state.body_hold = None
    hold.shrink(num_bytes)
    return hold.release
