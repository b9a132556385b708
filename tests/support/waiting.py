"""Waiting for what happens elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Let the event loop turn until the condition holds. Raises TimeoutError."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - the state is another thread's or process's
            await asyncio.sleep(0.001)
