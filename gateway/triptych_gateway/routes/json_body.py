"""Reading JSON bodies: bounded, and strict in what is JSON."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, cast

import orjson
from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from triptych_common.errors import QueueFullError

from triptych_gateway.body_budget import BodyHold
from triptych_gateway.file_parts import FileParts
from triptych_gateway.state import gateway_of

#: Of a body's length, what it takes to read and decode it: its bytes, the decoded files, and what the memory allocator adds. A body
#: whose files have escapes in them takes more for a moment.
_MEMORY_FACTOR = 2.5

#: How long a body may give nothing, in seconds: it holds memory that others wait for.
READ_TIMEOUT_S = 30.0

#: Commas and opening brackets in a body beside its files. Each may be a value, which takes about 50 times its text and holds up the
#: event loop while it is read: a million takes a fifth of a second. Prompts of token ids are what comes nearest.
MAX_SEPARATORS = 1_000_000


class JsonRequest(Request):
    """A request whose body is read by orjson: UTF-8 only, no lone surrogates, no NaN, no name twice in one object.

    A body is refused with 413 beyond the limit, and waits while other bodies take all memory that there is for them.
    """

    async def body(self) -> bytes:
        """The bytes of the body. JSON is not copied out of its buffer: FastAPI asks only whether there is any."""
        if not hasattr(self, "_body"):
            gateway = gateway_of(self)
            limit = gateway.settings.max_body_bytes
            length = self.headers.get("content-length", "")
            num_bytes = int(length[:20]) if length.isascii() and length.isdecimal() else limit
            if length and num_bytes > limit:
                raise _too_large(limit)
            try:
                self.state.body_hold = await gateway.bodies.take(int(num_bytes * _MEMORY_FACTOR))
            except QueueFullError as error:  # FastAPI lets no other error through than its own
                raise HTTPException(429, error.message, {"retry-after": "1"}) from error
            body = bytearray()
            chunks = self.stream()
            while (chunk := await _next_chunk(chunks)) is not None:
                body += chunk
                if len(body) > limit:
                    raise _too_large(limit)
            is_json = "json" in self.headers.get("content-type", "json")
            self._body = cast("bytes", body) if is_json else bytes(body)
        return self._body

    async def json(self) -> Any:
        """The value of the body, with names in place of files, which are in `state.files`.

        Raises:
            orjson.JSONDecodeError: it is no JSON; FastAPI takes it for its own.
            HTTPException: it is JSON that cannot be served.
        """
        if not hasattr(self, "_json"):
            files = FileParts(await self.body())
            if sum(map(files.rest.count, (b",", b"[", b"{"))) > MAX_SEPARATORS:
                raise HTTPException(400, f"the body has more than {MAX_SEPARATORS} commas and opening brackets beside its files")
            self._json = orjson.loads(files.rest)
            check_names(files.rest)
            files.rest = b""  # a text's body would stay for as long as its answer takes
            self.state.files = files
        return self._json


async def _next_chunk(chunks: AsyncGenerator[bytes, None]) -> bytes | None:
    """What comes next of a body, or None at its end."""
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            return await anext(chunks, None)
    except TimeoutError:
        raise HTTPException(408, f"the body stopped: nothing came for {READ_TIMEOUT_S:g} s") from None


def files_of(request: Request) -> FileParts:
    """The files that came in the request's body."""
    files: FileParts = request.state.files
    return files


def check_names(body: bytes | bytearray) -> None:
    """Refuse objects that have a name twice: which value counts is anybody's guess. Raises HTTPException."""
    try:
        json.loads(body, object_pairs_hook=_object)
    except _DuplicateNameError as error:
        raise HTTPException(400, f"the body has the name {str(error)[:100]!r} twice in one object") from None
    except RecursionError:
        raise HTTPException(400, "the body is nested too deeply") from None


class _DuplicateNameError(Exception):
    """An object has this name twice."""


def _object(pairs: list[tuple[str, Any]]) -> None:
    names = set()
    for name, _ in pairs:
        if name in names:
            raise _DuplicateNameError(name)
        names.add(name)


def _too_large(limit: int) -> HTTPException:
    return HTTPException(413, f"the body is larger than {limit} bytes")


class JsonRoute(APIRoute):
    """A route that reads its body as JsonRequest does."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_json(request: Request) -> Response:
            json_request = JsonRequest(request.scope, request.receive)
            try:
                return await handle(json_request)
            finally:
                # Unless the answer keeps it, see `take_hold`.
                take_hold(json_request, 0)()

        return handle_json


def take_hold(request: Request, num_bytes: int) -> Callable[[], None]:
    """Keep so many bytes of what the body holds beyond the handler; returns what releases them."""
    hold: BodyHold | None = getattr(request.state, "body_hold", None)
    if hold is None:
        return lambda: None
    request.state.body_hold = None
    hold.shrink(num_bytes)
    return hold.release
