"""Loads the model while the service already answers control calls, and stops if it has to."""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import Executor as Thread
from typing import Any

from triptych.errors import StartupError
from triptych_common.constraints.cache import warm_up

from triptych_engine.executor.multiproc import MultiprocExecutor
from triptych_engine.executor.protocol import Executor, ExecutorInfo


async def load_model(
    executor: Executor, device_thread: Thread, stop: asyncio.Event, died: asyncio.Event, *, has_constraints: bool
) -> ExecutorInfo | None:
    """Load the model on the device thread. Returns None if the service has to stop.

    Args:
        died: the worker that loads it has ended.
        has_constraints: requests may ask for them.

    Raises:
        StartupError: the model cannot be loaded, or the worker has ended.
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
    if has_constraints and not stop.is_set():
        # Before requests come: llguidance keeps the GIL for 0.3 s (49,152 tokens), in which no step could begin.
        compiling = asyncio.wrap_future(warm_up(executor.compile_constraint))
        ended = asyncio.create_task(until_any(stop, died))
        await asyncio.wait([compiling, ended], return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        if died.is_set():
            raise StartupError("the engine's worker ended at its start; see the log above")
        if not stop.is_set():
            await compiling
    return None if stop.is_set() else loaded


async def until_any(*events: asyncio.Event) -> None:
    """Wait until one of the events is set."""
    waiting = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
