"""Streamed answers, the hot path: bytes from an iterator straight to the socket."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from triptych_gateway.answers.lifecycle import until_disconnect
from triptych_gateway.dialects.dialect import Encoder
from triptych_gateway.errors import ClientDisconnectedError, to_api_error

log = logging.getLogger(__name__)
_HEADERS = (
    (b"cache-control", b"no-cache"),
    # Proxies such as nginx would hold events back.
    (b"x-accel-buffering", b"no"),
)


class EventStreamResponse(Response):
    """Streams events. An error before the first one is raised, and gets its HTTP status; a later one is an event of its own.

    Args:
        events: complete events, one or several per item. It is closed however the response ends.
        encoder: of the answer. It says what the content type is, and writes a late error.
        stopping: done when the gateway has to stop.
        release: called in the end, also when the events never began.
    """

    def __init__(
        self, events: AsyncGenerator[bytes, None], encoder: Encoder, stopping: asyncio.Future[None], release: Callable[[], None]
    ) -> None:
        super().__init__()
        self._events = events
        self._encoder = encoder
        self._stopping = stopping
        self._release = release
        self._is_started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await until_disconnect(self._send_events(send, scope["state"]["send_body"]), receive, self._stopping)
        except ClientDisconnectedError:
            raise
        except Exception as error:
            if not self._is_started:
                raise
            api_error = to_api_error(error)
            log.warning("stream ended with an error: %s", api_error.message)
            scope["state"]["record"].stream_error = api_error.code or api_error.type
            last = self._encoder.failure(api_error)
            await send({"type": "http.response.body", "body": last, "more_body": False})
        finally:
            self._release()

    async def _send_events(self, send: Send, send_body: Send) -> None:
        headers = ((b"content-type", self._encoder.content_type), *_HEADERS)
        async with contextlib.aclosing(self._events) as events:
            async for event in events:
                if not self._is_started:
                    self._is_started = True
                    await send({"type": "http.response.start", "status": 200, "headers": headers})
                # Past the middleware, which looks at the head alone: half a dozen calls less per event.
                await send_body({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
