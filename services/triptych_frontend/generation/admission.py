"""Admission control: limits the number of concurrent calls, of all tenants and of each, and tells when the frontend is idle."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

from triptych.errors import QueueFullError, ServiceUnavailableError
from triptych_common.host.fair_share import ServiceShare

_RETRY_AFTER_S = 1.0


class Admission:
    """Counts live calls. It refuses calls beyond the limit, and all calls while the frontend drains.

    Args:
        max_live: most calls at the same time.
    """

    def __init__(self, max_live: int) -> None:
        self._shares = ServiceShare(max_live)
        self._idle = asyncio.Event()
        self._idle.set()
        self.is_draining = False
        self._idle_since_s = time.monotonic()

    @property
    def idle_s(self) -> float:
        """Since the last call ended, in seconds; 0 while one is live."""
        return 0.0 if self.num_live else time.monotonic() - self._idle_since_s

    @property
    def num_live(self) -> int:
        """Live calls of all tenants."""
        return self._shares.used

    @contextmanager
    def admit(self, tenant: str = "") -> Iterator[None]:
        """Count one call of a tenant while the block runs. Raises ServiceUnavailableError or QueueFullError."""
        if self.is_draining:
            raise ServiceUnavailableError("the frontend is draining and takes no more requests", retry_after_s=_RETRY_AFTER_S)
        if not self._shares.take(tenant):
            limit, own = self._shares.capacity, self._shares.used_by(tenant)
            message = f"the frontend works on {self.num_live} requests, its limit is {limit} (max_live_requests)"
            if self.num_live < limit:
                limit = self._shares.share(tenant)
                message = f"the frontend works on {own} requests of this tenant, whose share is {limit} (max_live_requests)"
            raise QueueFullError(message, limit=limit, value=self.num_live, retry_after_s=_RETRY_AFTER_S)
        self._idle.clear()
        try:
            yield
        finally:
            self._shares.give_back(tenant)
            if not self.num_live:
                self._idle_since_s = time.monotonic()
                self._idle.set()

    def close(self) -> None:
        """Refuse new calls."""
        self.is_draining = True

    def open(self) -> None:
        """Accept calls again after `close`."""
        self.is_draining = False
        self._idle_since_s = time.monotonic()

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no call is live. Returns False if calls are still live after the timeout."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True
