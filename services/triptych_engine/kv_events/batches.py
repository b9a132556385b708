"""Numbers the events of the prefix cache, and passes them from the step loop's thread to those who publish them on the event loop.

The form of the events is that of vLLM.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from triptych_engine.scheduling.cache.block_pool import BlockStored, ExtraKey, KVEvent

#: Where blocks are. To receivers it is the tier that the engine computes from: with "CPU" they mean blocks that were moved out of
#: it. So vLLM says this on CPUs too.
MEDIUM = "GPU"


def external_hash(block_hash: bytes) -> int:
    """The name of a block in events: the low 64 bits of its hash, big-endian and unsigned, as vLLM names blocks by default. Of
    names in full, receivers take the same bits. A collision makes a router choose another engine, and nothing else."""
    return int.from_bytes(block_hash[-8:], "big")


def extra_keys(event: BlockStored) -> list[tuple[ExtraKey | str, ...] | None]:
    """What each block depends on besides its tokens and its parent; None for nothing. The salt is a key of the first block of a
    prompt alone: the others inherit it."""
    keys: list[tuple[ExtraKey | str, ...]] = list(event.extra_keys)
    if event.parent_block_hash is None and event.cache_salt:
        keys[0] = (*keys[0], event.cache_salt)
    return [one or None for one in keys]


@dataclass(frozen=True, slots=True)
class KVEventBatch:
    """What happened in one step, in order."""

    #: From 0, without gaps.
    sequence_number: int
    #: Unix time in seconds.
    timestamp_s: float
    events: Sequence[KVEvent]


class KVEventBatches:
    """The batches of one engine, from its start."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        #: Called on the event loop with each batch. Must not block.
        self.listeners: list[Callable[[KVEventBatch], None]] = []
        self.num_batches = 0
        self.num_replays = 0  # that subscribers asked for
        self.num_dropped = 0  # batches that a subscriber over gRPC did not read in time

    def publish(self, events: Sequence[KVEvent]) -> None:
        """See `EngineCore.on_kv_events`; called on the step loop's thread."""
        try:
            self._loop.call_soon_threadsafe(self._deliver, time.time(), events)
        except RuntimeError:
            if not self._loop.is_closed():
                raise

    def _deliver(self, timestamp_s: float, events: Sequence[KVEvent]) -> None:
        batch = KVEventBatch(self.num_batches, timestamp_s, events)
        self.num_batches += 1
        for listener in self.listeners:
            listener(batch)
