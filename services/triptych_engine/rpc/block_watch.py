"""Tells routers which prefixes the engine's cache holds: everything at first, then what changes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence

from triptych.v1 import engine_pb2
from triptych_common.model.blocks import block_id

from triptych_engine.core import EngineCore

#: Changes that wait for a slow reader. Then it gets everything anew.
_MAX_WAITING = 1024
Change = tuple[int, Sequence[bytes], Sequence[bytes]]


class BlockWatch:
    """Passes changes from the step loop's thread to the streams on the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._readers: set[_Reader] = set()

    def publish(self, version: int, added: Sequence[bytes], removed: Sequence[bytes]) -> None:
        """See `EngineCore.on_blocks`; called on the step loop's thread."""
        try:
            self._loop.call_soon_threadsafe(self._deliver, (version, added, removed))
        except RuntimeError:
            if not self._loop.is_closed():
                raise

    def _deliver(self, change: Change) -> None:
        for reader in self._readers:
            reader.put(change)

    async def responses(self, core: EngineCore) -> AsyncGenerator[engine_pb2.WatchBlocksResponse, None]:
        """The responses of one stream, without an end."""
        reader, sequence, block_size = _Reader(), 0, core.load.block_size
        self._readers.add(reader)
        try:
            while True:
                version, whole = await asyncio.wrap_future(core.watch_blocks())
                sequence += 1
                yield _response(sequence, block_size, whole, (), is_whole=True)
                while (changes := await reader.take()) is not None:
                    for number, added, removed in changes:
                        if number > version:
                            sequence += 1
                            yield _response(sequence, block_size, added, removed)
        finally:
            self._readers.discard(reader)


class _Reader:
    """The changes that one stream has not read yet."""

    def __init__(self) -> None:
        self._waiting: deque[Change] = deque()
        self._has_lost = False
        self._changed = asyncio.Event()

    def put(self, change: Change) -> None:
        if len(self._waiting) >= _MAX_WAITING:
            self._has_lost = True
            self._waiting.clear()
        if not self._has_lost:
            self._waiting.append(change)
        self._changed.set()

    async def take(self) -> list[Change] | None:
        """Wait for changes. None if some were lost."""
        await self._changed.wait()
        self._changed.clear()
        if self._has_lost:
            self._has_lost = False
            self._waiting.clear()
            return None
        changes = list(self._waiting)
        self._waiting.clear()
        return changes


def _response(
    sequence: int, block_size: int, added: Sequence[bytes], removed: Sequence[bytes], *, is_whole: bool = False
) -> engine_pb2.WatchBlocksResponse:
    return engine_pb2.WatchBlocksResponse(
        sequence=sequence,
        is_whole=is_whole,
        added=map(block_id, added),
        removed=map(block_id, removed),
        block_size=block_size,
    )
