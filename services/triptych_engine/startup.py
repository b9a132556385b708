"""Loads the model while the service already answers control calls, and stops if it has to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor as Thread
from typing import Any

from triptych.errors import StartupError
from triptych_common.constraints.cache import warm_up

from triptych_engine.executor.multiproc import MultiprocExecutor
from triptych_engine.executor.protocol import Executor, ExecutorInfo

#: Those that waited for the engine to be ready, or awake, come first, in seconds.
_FIRST_REQUESTS_S = 1.0


async def load_model(executor: Executor, device_thread: Thread, stop: asyncio.Event) -> ExecutorInfo | None:
    """Load the model on the device thread. Returns None if the service has to stop.

    Raises:
        StartupError: the model cannot be loaded, or the worker that loads it has ended.
    """
    loading = asyncio.wrap_future(device_thread.submit(executor.load))
    stopping = asyncio.ensure_future(stop.wait())
    waiting: list[asyncio.Future[Any]] = [loading, stopping]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not loading.done() and isinstance(executor, MultiprocExecutor):  # it may wait for other hosts
        await asyncio.to_thread(executor.close)
        with contextlib.suppress(StartupError):
            await loading
        return None
    loaded = await loading
    return None if stop.is_set() else loaded


async def warm_up_constraints(executor: Executor, wait_idle: Callable[[], Awaitable[None]], serves: Callable[[], bool]) -> None:
    """Load what constraints need, once the engine has nothing to do: llguidance keeps the GIL for 0.2 s (49,152 tokens), in which
    no step can begin. If an earlier request has a constraint, that one loads it.

    Args:
        wait_idle: returns once no request is live.
        serves: whether the engine takes requests. While it sleeps it has given its memory back.
    """
    while True:
        await asyncio.sleep(_FIRST_REQUESTS_S)
        await wait_idle()
        if serves():
            break
    await asyncio.wrap_future(warm_up(executor.compile_constraint))


async def until_any(*events: asyncio.Event) -> None:
    """Wait until one of the events is set."""
    waiting = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
