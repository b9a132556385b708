"""From a key to leased embeddings: the cache, the shared store, the encoding queue. Use it on the event loop only."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Protocol

from triptych.errors import EmbeddingUnavailableError, InvalidRequestError, MediaNotFoundError, QueueFullError
from triptych.v1 import encoder_pb2
from triptych_common.telemetry.histogram import SECONDS, Histogram
from triptych_common.telemetry.trace_context import TraceContext

from triptych_encoder.cache.announcements import Announcements
from triptych_encoder.cache.embedding_cache import EmbeddingCache
from triptych_encoder.cache.item import EncodedItem
from triptych_encoder.encoding_queue import EncodeOutcome, EncodingQueue, ItemPreprocessor, ItemRequest, QueueLimits, StageTimes
from triptych_encoder.tower.device_loop import DeviceLoop

Tier = encoder_pb2.CacheTier


class Store(Protocol):
    """The interface of the shared store that the pipeline needs."""

    num_failures: int

    async def get(self, key: bytes) -> EncodedItem | None: ...
    async def put(self, key: bytes, item: EncodedItem) -> None: ...
    async def has(self, keys: Sequence[bytes]) -> list[bool]: ...
    async def evict(self, keys: Sequence[bytes]) -> None: ...
    async def close(self) -> None: ...


@dataclass(frozen=True)
class LeasedItem:
    """Embeddings in the cache that are leased to a caller."""

    item: EncodedItem
    lease_id: str
    tier: encoder_pb2.CacheTier
    times: StageTimes = field(default_factory=StageTimes)
    #: The trace that computed it; None if it was found, or is of no trace.
    computed_in: TraceContext | None = None


@dataclass
class Counters:
    """Counts since the start."""

    num_local_hits: int = 0
    num_shared_hits: int = 0
    num_joined: int = 0
    num_misses: int = 0
    #: Bytes of raw files that were received, and of tensors that were fetched.
    num_uploaded_bytes: int = 0
    num_fetched_bytes: int = 0
    #: From the request for a key to its last chunk, in seconds.
    fetch: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    #: Items and fetches that failed, by the reason of their error.
    errors: Counter[str] = field(default_factory=Counter)


class EncodingPipeline:
    """Finds or computes embeddings. Callers that request the same key at the same time share one computation.

    Args:
        store: the second cache tier, shared by several encoders; None if there is none.
    """

    def __init__(
        self,
        cache: EmbeddingCache[EncodedItem],
        preprocessor: ItemPreprocessor,
        device_loop: DeviceLoop,
        pool: Executor,
        store: Store | None,
        limits: QueueLimits,
    ) -> None:
        self.cache, self.store, self.counters = cache, store, Counters()
        self.device_loop = device_loop
        self.queue = EncodingQueue(preprocessor, device_loop, pool, limits, self._keep_and_store)
        self._announcements = Announcements()
        self._writes: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Cancel all computations, and finish pending writes to the store."""
        self.queue.cancel_all()
        if self._writes:
            await asyncio.wait(self._writes, timeout=2.0)
        if self.store is not None:
            await self.store.close()

    async def get_or_encode(self, request: ItemRequest, lease_s: float) -> LeasedItem:
        """The item's embeddings, leased for `lease_s` seconds.

        Raises:
            MediaNotFoundError: the embeddings do not exist, and the request came without the file. From now on, fetches of the key
                wait for the file.
            QueueFullError: the queue is full, or leases fill the cache.
            InvalidRequestError: the file or the options cannot be used.
        """
        key = request.key
        found = await self._find(key)
        if found is not None:
            tier, item = found
            self._announcements.fulfil(key)  # another encoder may have stored it meanwhile
            return LeasedItem(item, self._lease(key, lease_s), tier)
        task, tier = self.queue.find(key), Tier.CACHE_TIER_JOINED
        if task is not None:
            self.counters.num_joined += 1
        elif request.data:
            try:
                task, tier = self.queue.start(request), Tier.CACHE_TIER_MISS
            except QueueFullError:
                self._announcements.withdraw(key)
                raise
            self.counters.num_misses += 1
            self._announcements.fulfil(key)
        else:
            self._announcements.announce(key, lease_s)
            raise MediaNotFoundError("no embedding is held under this key; send the bytes", field="data")

        def claim(outcome: EncodeOutcome) -> LeasedItem:
            # The item may have been evicted since its computation ended.
            self._keep(key, outcome.item)
            return LeasedItem(outcome.item, self._lease(key, lease_s), tier, outcome.times, outcome.trace)

        return await task.join(claim)

    async def wait_for(self, key: bytes, timeout_s: float) -> EncodedItem:
        """The embeddings of a key that is cached, being encoded, or announced.

        Raises:
            EmbeddingUnavailableError: the key is neither cached nor announced, its file was refused, or it did not arrive in time.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    found = await self._find(key, is_request=False)
                    if found is not None:
                        return found[1]
                    task = self.queue.find(key)
                    if task is not None:
                        return await task.join(lambda outcome: outcome.item)
                    if not await self._announcements.wait_for(key):
                        raise EmbeddingUnavailableError("no embedding is held under this key, and none is on its way")
        except TimeoutError as error:
            raise EmbeddingUnavailableError(f"the embedding did not come within {timeout_s:g} s") from error

    def expect_no_bytes(self) -> None:
        """Note that no files will be accepted from now on. Fetches that wait for announced keys fail."""
        self._announcements.withdraw_all()

    async def lookup(self, keys: Sequence[bytes]) -> list[encoder_pb2.CacheTier]:
        """The cache tier of each key. Changes nothing."""
        tiers = [self._tier_in_memory(key) for key in keys]
        absent = [index for index, tier in enumerate(tiers) if tier == Tier.CACHE_TIER_MISS]
        if self.store is not None and absent:
            for index, is_stored in zip(absent, await self.store.has([keys[index] for index in absent]), strict=True):
                tiers[index] = Tier.CACHE_TIER_SHARED if is_stored else Tier.CACHE_TIER_MISS
        return tiers

    def _tier_in_memory(self, key: bytes) -> encoder_pb2.CacheTier:
        if key in self.cache:
            return Tier.CACHE_TIER_LOCAL
        return Tier.CACHE_TIER_JOINED if self.queue.find(key) is not None else Tier.CACHE_TIER_MISS

    async def _find(self, key: bytes, is_request: bool = True) -> tuple[encoder_pb2.CacheTier, EncodedItem] | None:
        """The item from the cache, or from the store, which puts it into the cache.

        Args:
            is_request: count it as a hit.
        """
        self.cache.expire(time.monotonic())
        item = self.cache.use(key)
        if item is None:
            if self.store is None or self.queue.find(key) is not None:
                return None
            stored = await self.store.get(key)
            if stored is not None:
                self._keep(key, stored)
                self.counters.num_shared_hits += is_request
                return Tier.CACHE_TIER_SHARED, stored
            # Another call may have encoded the item during the read from the store.
            item = self.cache.use(key)
        if item is None:
            return None
        self.counters.num_local_hits += is_request
        return Tier.CACHE_TIER_LOCAL, item

    def _keep_and_store(self, key: bytes, item: EncodedItem) -> None:
        self._keep(key, item)
        if self.store is not None:
            write = asyncio.create_task(self.store.put(key, item))
            self._writes.add(write)
            write.add_done_callback(self._writes.discard)

    def _keep(self, key: bytes, item: EncodedItem) -> None:
        capacity = self.cache.capacity_bytes
        if item.num_bytes > capacity:
            message = f"the embeddings of this item have {item.num_bytes} bytes; the cache has {capacity}"
            raise InvalidRequestError(message, field="data", limit=capacity, value=item.num_bytes)
        self.cache.expire(time.monotonic())
        if not self.cache.put(key, item):
            message = f"the cache of {capacity} bytes is full of leases"
            raise QueueFullError(message, limit=capacity, value=self.cache.leased_bytes, retry_after_s=1.0)

    def _lease(self, key: bytes, lease_s: float) -> str:
        return self.cache.lease(key, time.monotonic() + lease_s)
