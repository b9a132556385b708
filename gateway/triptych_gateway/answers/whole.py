"""Answers that are not streamed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from triptych_gateway.answers.lifecycle import until_disconnect


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
