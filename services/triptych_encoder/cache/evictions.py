"""Reports to watchers which keys left the cache."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from triptych.errors import ServiceUnavailableError

#: Most keys that wait for a slow watcher.
_MAX_PENDING = 65_536


class EvictionFeed:
    """Passes evicted keys to any number of watchers. Use it on the event loop only."""

    def __init__(self) -> None:
        self._watchers: set[EvictionWatcher] = set()

    def publish(self, keys: Sequence[bytes]) -> None:
        for watcher in self._watchers:
            watcher.put(keys)

    @contextmanager
    def watch(self) -> Iterator[EvictionWatcher]:
        watcher = EvictionWatcher()
        self._watchers.add(watcher)
        try:
            yield watcher
        finally:
            self._watchers.discard(watcher)


class EvictionWatcher:
    """The evicted keys that one watcher has not read yet."""

    def __init__(self) -> None:
        self._pending: list[bytes] = []
        self._has_some = asyncio.Event()
        self._lost_some = False

    def put(self, keys: Sequence[bytes]) -> None:
        self._lost_some = self._lost_some or len(self._pending) + len(keys) > _MAX_PENDING
        if not self._lost_some:
            self._pending.extend(keys)
        self._has_some.set()

    async def take(self) -> list[bytes]:
        """Wait for keys. Raises ServiceUnavailableError if too many waited and some were dropped: look keys up instead."""
        await self._has_some.wait()
        if self._lost_some:
            raise ServiceUnavailableError(f"more than {_MAX_PENDING} evictions waited unread; watch again and look keys up")
        taken, self._pending = self._pending, []
        self._has_some.clear()
        return taken
