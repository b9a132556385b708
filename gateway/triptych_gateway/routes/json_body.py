"""Reading JSON bodies: bounded, and strict in what is JSON."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import orjson
from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from triptych_gateway.state import gateway_of


class JsonRequest(Request):
    """A request whose body is read by orjson: UTF-8 only, no lone surrogates, no NaN; refused with 413 beyond the limit."""

    async def body(self) -> bytes:
        """The bytes of the body."""
        if not hasattr(self, "_body"):
            limit = gateway_of(self).settings.max_body_bytes
            length = self.headers.get("content-length", "")
            if length.isascii() and length.isdecimal() and int(length[:20]) > limit:
                raise _too_large(limit)
            body = bytearray()
            async for chunk in self.stream():
                body += chunk
                if len(body) > limit:
                    raise _too_large(limit)
            self._body = bytes(body)
        return self._body

    async def json(self) -> Any:
        """The value of the body. Raises orjson.JSONDecodeError, which FastAPI takes for its own."""
        if not hasattr(self, "_json"):
            self._json = orjson.loads(await self.body())
        return self._json


def _too_large(limit: int) -> HTTPException:
    return HTTPException(413, f"the body is larger than {limit} bytes")


class JsonRoute(APIRoute):
    """A route that reads its body as JsonRequest does."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_json(request: Request) -> Response:
            return await handle(JsonRequest(request.scope, request.receive))

        return handle_json
