"""Answers in one piece."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from triptych_gateway.answers.lifecycle import until_disconnect


class WholeResponse(Response):
    """Sends what a coroutine makes, for as long as the client waits.

    The work is done here and not in the route's handler. When it begins, nothing of the request's body is held any more but what
    the work itself holds.

    Args:
        work: makes the body, JSON.
        stopping: done when the gateway has to stop.
        release: called in the end, also when the work never began.
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
