"""Cancelling the work of a request when its client disconnects or the gateway stops."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive
from triptych.errors import ServiceUnavailableError

from triptych_gateway.errors import ClientDisconnectedError

T = TypeVar("T")


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
