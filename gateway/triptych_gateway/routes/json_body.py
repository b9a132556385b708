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
    """A request whose body is read by orjson: UTF-8 only, no lone surrogates, no NaN; refused with 413 beyond the limit, and with
    429 while other bodies take all memory that there is for them."""

    async def body(self) -> bytes:
        """The bytes of the body."""
        if not hasattr(self, "_body"):
            limit = gateway_of(self).settings.max_body_bytes
            length = self.headers.get("content-length", "")
            if length.isascii() and length.isdecimal() and int(length[:20]) > limit:
                raise _too_large(limit)
            body = bytearray()
            async for chunk in self.stream():
                self._take(len(chunk))
                body += chunk
                if len(body) > limit:
                    raise _too_large(limit)
            self._body = bytes(body)
        return self._body

    def _take(self, num_bytes: int) -> None:
        gateway = gateway_of(self)
        limit = gateway.settings.max_live_body_bytes
        if gateway.live_body_bytes + num_bytes > limit:
            message = f"the bodies of live requests take {gateway.live_body_bytes} of {limit} bytes (max_live_body_bytes)"
            raise HTTPException(429, message, {"retry-after": "1"})
        gateway.live_body_bytes += num_bytes
        self._num_taken_bytes = getattr(self, "_num_taken_bytes", 0) + num_bytes

    def release(self) -> None:
        """Let go of the body: no more of it is held than what the call to the frontend needs."""
        gateway_of(self).live_body_bytes -= getattr(self, "_num_taken_bytes", 0)
        self._num_taken_bytes = 0

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
            json_request = JsonRequest(request.scope, request.receive)
            try:
                return await handle(json_request)
            finally:
                json_request.release()

        return handle_json
