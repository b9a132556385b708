"""Streamed answers. This is the hot path: it sends bytes from an iterator directly to the server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable
from typing import Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from triptych_gateway.answers.lifecycle import until_disconnect
from triptych_gateway.errors import ApiError, ClientDisconnectedError, to_api_error
from triptych_gateway.tracing import note_error

log = logging.getLogger(__name__)
_HEADERS = (
    (b"cache-control", b"no-cache"),
    # Proxies such as nginx would buffer events without this header.
    (b"x-accel-buffering", b"no"),
)


class StreamFormat(Protocol):
    """The part of an encoder that a stream needs."""

    @property
    def content_type(self) -> bytes:
        """The content type of the stream."""
        ...

    def failure(self, error: ApiError) -> bytes:
        """Events that end a stream that failed after its first event."""
        ...


class EventStreamResponse(Response):
    """Streams events. An error before the first event is raised and becomes an HTTP status. A later error becomes an event.

    Args:
        events: one or several complete events per item. It is always closed at the end.
        encoder: the answer's encoder. It gives the content type, and writes an error that comes after the first event.
        stopping: done when requests in flight must end.
        release: always called at the end, also if no event was sent.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        encoder: StreamFormat,
        stopping: asyncio.Future[None],
        release: Callable[[], None],
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
            note_error(api_error.code or api_error.type, api_error.status)
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
                # Bypass the middleware, which needs only the response start. This saves half a dozen calls per event.
                await send_body({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
