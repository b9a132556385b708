"""Admission control: limits the number of concurrent calls, and tells when the frontend is idle."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from triptych.errors import QueueFullError, ServiceUnavailableError

_RETRY_AFTER_S = 1.0


class Admission:
    """Counts live calls. It refuses calls beyond the limit, and all calls while the frontend drains.

    Args:
        max_live: most calls at the same time.
    """

    def __init__(self, max_live: int) -> None:
        self._max_live = max_live
        self._idle = asyncio.Event()
        self._idle.set()
        self.num_live = 0
        self.is_draining = False

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Count one call while the block runs. Raises ServiceUnavailableError or QueueFullError."""
        if self.is_draining:
            raise ServiceUnavailableError("the frontend is draining and takes no more requests", retry_after_s=_RETRY_AFTER_S)
        if self.num_live >= self._max_live:
            raise QueueFullError(
                f"the frontend works on {self.num_live} requests, its limit (max_live_requests)",
                limit=self._max_live,
                value=self.num_live,
                retry_after_s=_RETRY_AFTER_S,
            )
        self.num_live += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.num_live -= 1
            if not self.num_live:
                self._idle.set()

    def close(self) -> None:
        """Refuse new calls."""
        self.is_draining = True

    def open(self) -> None:
        """Accept calls again after `close`."""
        self.is_draining = False

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no call is live. Returns False if calls are still live after the timeout."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True
