"""Reading JSON bodies with limits on size and memory, and with strict JSON rules."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, ClassVar, cast, get_type_hints

import orjson
from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from starlette.exceptions import HTTPException
from triptych.errors import QueueFullError

from triptych_gateway.body_budget import MEMORY_FACTOR, BodyHold
from triptych_gateway.file_parts import MEDIA_MARKS, FileParts, run_sized
from triptych_gateway.state import gateway_of, grant_of
from triptych_gateway.wire.errors import InvalidBodyError

#: In each period of this length, in seconds, a body has to grow by so many bytes. Its memory is what other requests wait for.
PACE_S, PACE_BYTES = 10.0, 160 << 10
#: Limits on what a body has beside its files. Each comma and bracket may be a JSON value, which takes about 50 times the memory of
#: its text, and nothing else runs while one of them is parsed into Python objects: a million take a twentieth of a second, and the
#: names of a million fields half a second. Of valid bodies, prompts of token ids come nearest to the first limit.
MAX_SEPARATORS = 1_000_000
MAX_BRACKETS = 200_000
MAX_STRINGS = 100_000


class JsonRequest(Request):
    """A request whose body is parsed by orjson: UTF-8 only, no lone surrogates, no NaN, no duplicate names in an object.

    A body larger than the limit is refused with 413. A body waits while other bodies use all of the memory budget.
    """

    #: The schema of the body; None if it is no JSON.
    schema: TypeAdapter[Any] | None = None
    #: Marks of files in the body.
    file_marks: ClassVar[tuple[bytes, ...]] = MEDIA_MARKS

    def model_named(self, value: Any) -> Any:
        """The name of the served model that the body means; anything but a string if it names none."""
        return value.get("model") if isinstance(value, dict) else None

    #: Whether the body names the model that answers it.
    names_model = True

    async def body(self) -> bytes:
        """The bytes of the body. JSON and forms are not copied to `bytes`: FastAPI only checks whether the body is empty."""
        if not hasattr(self, "_body"):
            gateway = gateway_of(self)
            limit = gateway.settings.max_body_bytes
            length = self.headers.get("content-length", "")
            num_bytes = int(length[:20]) if length.isascii() and length.isdecimal() else limit
            if length and num_bytes > limit:
                raise _too_large(limit)
            self.state.body_hold = hold = gateway.bodies.hold(self.state.principal.tenant, int(num_bytes * MEMORY_FACTOR))
            body = bytearray()
            reader = BodyReader(self.stream(), gateway.settings.body_timeout_s)
            while (chunk := await reader.next(len(body), hold.ends_s)) is not None:
                if len(body) + len(chunk) > limit:
                    raise _too_large(limit)
                try:
                    await hold.grow(int(len(chunk) * MEMORY_FACTOR))
                except QueueFullError as error:  # FastAPI re-raises only HTTPException
                    raise HTTPException(429, error.message, {"retry-after": "1", "connection": "close"}) from error
                body += chunk
            hold.complete()
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
            body = await self.body()
            value, files = await run_sized(len(body), lambda: _parsed_with_files(body, self.file_marks))
            if self.names_model:
                grant_of(self).use_model(self.model_named(value), gateway_of(self).served_models)
            self._json = await self._validated(value, files)
            files.rest = b""  # otherwise the body stays in memory until the answer is complete
            self.state.files = files
        return self._json

    async def _validated(self, value: Any, files: FileParts) -> Any:
        """The value as an object of the route's schema, which FastAPI takes as it is: it would validate on the event loop."""
        schema = self.schema
        if schema is None:
            return value
        try:
            return await files.run(lambda: schema.validate_python(value, from_attributes=True))
        except ValidationError as error:
            raise InvalidBodyError(error, value) from None


def _parsed_with_files(body: bytes | bytearray, marks: tuple[bytes, ...]) -> tuple[Any, FileParts]:
    """The JSON value of a body without its files, and the files."""
    try:
        files = FileParts(body, marks=marks)
    except ValueError as error:
        raise HTTPException(400, f"the body {error}") from None
    if problem := too_many_parts(files.rest):
        raise HTTPException(400, f"the body has {problem} beside its files")
    value = orjson.loads(files.rest)
    check_names(files.rest)
    return value, files


def too_many_parts(text: bytes | bytearray | str) -> str:
    """What JSON has too much of to be parsed; empty if it is within the limits. Nothing here takes memory."""
    count: Callable[[str], int] = text.count if isinstance(text, str) else lambda part: text.count(part.encode())
    brackets = count("[") + count("{")
    if brackets > MAX_BRACKETS:
        return f"more than {MAX_BRACKETS} opening brackets"
    if brackets + count(",") > MAX_SEPARATORS:
        return f"more than {MAX_SEPARATORS} commas and opening brackets"
    # A quoted quote belongs to a string. Strings that end with a backslash are not all seen, so that twice as many may pass.
    if count('"') - count('\\"') > 2 * MAX_STRINGS:
        return f"more than {MAX_STRINGS} strings"
    return ""


class BodyReader:
    """Reads a body whose sender keeps to a pace.

    Args:
        timeout_s: longest time for all of the body, without the waits for memory or a disk.
    """

    def __init__(self, chunks: AsyncGenerator[bytes, None], timeout_s: float) -> None:
        self._chunks = chunks
        self._timeout_s = timeout_s
        #: Time in which the gateway waited for the sender, in seconds.
        self._waited_s = 0.0
        #: When the period began in which the body has to grow, as such time, and its bytes then.
        self._period_s, self._period_bytes = 0.0, 0

    async def next(self, num_read: int, ends_s: float | None) -> bytes | None:
        """The next chunk, or None at the end of the body.

        Args:
            num_read: bytes that were read so far.
            ends_s: time of the event loop at which all must have arrived, if there is one.

        Raises:
            HTTPException: the sender is too slow.
        """
        if num_read - self._period_bytes >= PACE_BYTES:
            self._period_s, self._period_bytes = self._waited_s, num_read
        clock = asyncio.get_running_loop().time
        begin_s = clock()
        left_s = min(self._timeout_s, self._period_s + PACE_S) - self._waited_s
        try:
            async with asyncio.timeout(max(0.0, left_s if ends_s is None else min(left_s, ends_s - begin_s))):
                return await anext(self._chunks, None)
        except TimeoutError:
            message = (
                f"the body is too slow: it has {num_read} bytes after {self._waited_s + clock() - begin_s:.1f} s. It must grow by "
                f"{PACE_BYTES} bytes every {PACE_S:g} s, and be complete after {self._timeout_s:g} s (body_timeout_s); sooner "
                "while other bodies wait for memory (body_wait_s)"
            )
            # The rest of the body is not read.
            raise HTTPException(408, message, {"connection": "close"}) from None
        finally:
            self._waited_s += clock() - begin_s


def files_of(request: Request) -> FileParts:
    """The files that were cut out of the request's body."""
    files: FileParts = request.state.files
    return files


def check_names(body: bytes | bytearray) -> None:
    """Refuse objects with duplicate names, because their meaning is ambiguous. Raises HTTPException."""
    try:
        # Numbers were checked by orjson; `len` takes less time than converting them again.
        json.loads(body, object_pairs_hook=_object, parse_int=len, parse_float=len)
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

    request_class: ClassVar[type[JsonRequest]] = JsonRequest

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle, body = super().get_route_handler(), get_type_hints(self.endpoint, include_extras=True).get("body")
        schema = None if body is None else TypeAdapter(body)
        names_model = "model" in getattr(body, "model_fields", ("model",))

        async def handle_json(request: Request) -> Response:
            json_request = self.request_class(request.scope, request.receive)
            json_request.schema, json_request.names_model = schema, names_model
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
