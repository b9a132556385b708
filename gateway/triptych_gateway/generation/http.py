"""Sending answers to HTTP clients, whole or streamed, until the client disconnects or the gateway stops."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from triptych.errors import ServiceUnavailableError

from triptych_gateway.tracing import note_error
from triptych_gateway.wire.errors import ApiError, ClientDisconnectedError, to_api_error
from triptych_gateway.wire.sse import CONTENT_TYPE

log = logging.getLogger(__name__)
_HEADERS = (
    (b"cache-control", b"no-cache"),
    # Proxies such as nginx would buffer events without this header.
    (b"x-accel-buffering", b"no"),
)
#: A stream is started without an event after so many seconds. An error before becomes an HTTP status.
_START_AFTER_S = 1.0
#: A stream without news gets a heartbeat after so many seconds. Proxies close connections that are silent for a minute.
_HEARTBEAT_S = 15.0
T = TypeVar("T")


@dataclass(frozen=True)
class StreamForm:
    """How a stream is written.

    Args:
        content_type: of HTTP.
        heartbeat: writes what keeps the connection open and has no news.
    """

    content_type: bytes
    heartbeat: Callable[[], bytes]


#: A comment.
SERVER_SENT_EVENTS = StreamForm(CONTENT_TYPE, lambda: b": still working\n\n")


async def until_disconnect(work: Coroutine[Any, Any, T], receive: Receive, stopping: asyncio.Future[None]) -> T:
    """Run the work. Cancel it at once if the client disconnects or the gateway has to stop.

    Args:
        receive: the ASGI callable; the request's body has been read from it.
        stopping: done when requests in flight must end.

    Raises:
        ClientDisconnectedError: the client disconnected.
        ServiceUnavailableError: the gateway is stopping.
    """
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnected(receive))
    try:
        waited: set[asyncio.Future[Any]] = {task, gone, stopping}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if gone.done():
            raise ClientDisconnectedError
        raise ServiceUnavailableError("the gateway is stopping")
    finally:
        task.cancel()
        gone.cancel()
        # Wait until the work has closed its calls, before the request counts as ended.
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class WholeResponse(Response):
    """Runs a coroutine and sends its result, unless the client disconnects first.

    The coroutine runs here and not in the route's handler. By then nothing else holds the request's body, so only the data that the
    coroutine itself holds stays in memory.

    Args:
        work: returns the response body as JSON.
        stopping: done when requests in flight must end.
        release: always called at the end, also if the work did not finish.
    """

    media_type = "application/json"

    def __init__(self, work: Coroutine[None, None, bytes], stopping: asyncio.Future[None], release: Callable[[], None]) -> None:
        super().__init__()
        self._work = work
        self._stopping = stopping
        self._release = release

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self.body = await until_disconnect(self._work, receive, self._stopping)
        finally:
            self._release()
        self.init_headers()
        await super().__call__(scope, receive, send)


class EventStreamResponse(Response):
    """Streams events. An error before the stream is started is raised and becomes an HTTP status. A later error becomes an event.

    The stream is started with the first event, or a second after the request. While a request is queued or its prompt is computed,
    heartbeats keep the connection open.

    Args:
        events: one or several complete events per item. It is always closed at the end.
        failure: writes an error that comes after the first event.
        stopping: done when requests in flight must end.
        release: always called at the end, also if no event was sent.
        form: how the stream is written.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        failure: Callable[[ApiError], bytes],
        stopping: asyncio.Future[None],
        release: Callable[[], None],
        form: StreamForm = SERVER_SENT_EVENTS,
    ) -> None:
        super().__init__()
        self._form = form
        self._events = events
        self._failure = failure
        self._stopping = stopping
        self._release = release
        self._is_started = False
        self._num_sent = 0
        self._starting = asyncio.Lock()

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
            last = self._failure(api_error)
            await send({"type": "http.response.body", "body": last, "more_body": False})
        finally:
            self._release()

    async def _send_events(self, send: Send, send_body: Send) -> None:
        heart = asyncio.create_task(self._beat(send, send_body))
        try:
            async with contextlib.aclosing(self._events) as events:
                async for event in events:
                    if not self._is_started:
                        await self._start(send)
                    self._num_sent += 1
                    # Bypass the middleware, which needs only the response start. This saves half a dozen calls per event.
                    await send_body({"type": "http.response.body", "body": event, "more_body": True})
        finally:
            heart.cancel()
            await asyncio.gather(heart, return_exceptions=True)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _start(self, send: Send) -> None:
        async with self._starting:  # an event and a heartbeat may come at the same time
            if not self._is_started:
                headers = [(b"content-type", self._form.content_type), *_HEADERS]
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                self._is_started = True

    async def _beat(self, send: Send, send_body: Send) -> None:
        """Start the stream if no event does, and send heartbeats while there are none."""
        await asyncio.sleep(_START_AFTER_S)
        if not self._is_started:
            await self._start(send)
            await send_body({"type": "http.response.body", "body": self._form.heartbeat(), "more_body": True})
        while True:
            num_before = self._num_sent
            await asyncio.sleep(_HEARTBEAT_S)
            if self._num_sent == num_before:
                await send_body({"type": "http.response.body", "body": self._form.heartbeat(), "more_body": True})
