"""From a key to leased embeddings: cache, shared store, items in flight, and the way of raw bytes through pool and device.

Lives on the event loop, which owns the cache; the pool decodes and preprocesses, the device thread encodes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, Protocol

from triptych_common.pb import common_pb2, encoder_pb2
from triptych_common.rpc.errors import EmbeddingUnavailableError, InvalidRequestError, MediaNotFoundError, QueueFullError

from triptych_encoder.cache.announcements import Announcements
from triptych_encoder.cache.embedding_cache import EmbeddingCache
from triptych_encoder.cache.flight import Flight
from triptych_encoder.cache.item import EncodedItem, PreparedItem
from triptych_encoder.media.preprocess import Prepared
from triptych_encoder.tower.device_loop import DeviceLoop, Encoding

log = logging.getLogger(__name__)
Tier = encoder_pb2.CacheTier


class Prepares(Protocol):
    """What the pipeline needs of the preprocessor."""

    def prepare(self, modality: common_pb2.Modality, data: bytes, options: dict[str, Any]) -> Prepared: ...


class Store(Protocol):
    """What the pipeline needs of the second tier."""

    num_failures: int

    async def get(self, key: bytes) -> EncodedItem | None: ...
    async def put(self, key: bytes, item: EncodedItem) -> None: ...
    async def has(self, keys: Sequence[bytes]) -> list[bool]: ...
    async def evict(self, keys: Sequence[bytes]) -> None: ...
    async def close(self) -> None: ...


@dataclass(frozen=True)
class Wanted:
    """An item that a caller asks for; data is empty when it sends the key alone."""

    key: bytes
    modality: common_pb2.Modality
    data: bytes
    options: dict[str, Any]


@dataclass(frozen=True)
class Timings:
    """Wall time of an item's stages, in seconds."""

    queue_s: float = 0.0
    decode_s: float = 0.0
    preprocess_s: float = 0.0
    encode_s: float = 0.0


@dataclass(frozen=True)
class Obtained:
    """Embeddings that are held and leased."""

    item: EncodedItem
    lease_id: str
    tier: encoder_pb2.CacheTier
    timings: Timings = field(default_factory=Timings)


@dataclass
class Counters:
    num_local_hits: int = 0
    num_shared_hits: int = 0
    num_joined: int = 0
    num_misses: int = 0
    num_failed: int = 0
    #: Bytes of raw files that came along, and of tensors that were fetched.
    num_uploaded_bytes: int = 0
    num_fetched_bytes: int = 0


class EncodingPipeline:
    """Obtains embeddings, each computed once however many ask for it.

    Args:
        max_queue: items on their way at once; more are refused.
        max_queue_bytes: of their files; a file beyond it is taken alone.
        max_prepared: of these, items that are decoded or preprocessed and not yet encoded: bounds the memory they take.
    """

    def __init__(
        self,
        cache: EmbeddingCache[EncodedItem],
        preprocessor: Prepares,
        device_loop: DeviceLoop,
        pool: Executor,
        store: Store | None,
        *,
        max_queue: int,
        max_queue_bytes: int,
        max_prepared: int,
    ) -> None:
        self.cache, self.store, self.counters = cache, store, Counters()
        self._preprocessor, self._device_loop, self._pool = preprocessor, device_loop, pool
        self._max_queue, self._max_queue_bytes = max_queue, max_queue_bytes
        self._queued_bytes = 0
        self._prepared = asyncio.Semaphore(max_prepared)
        self._flights: dict[bytes, Flight[tuple[EncodedItem, Timings]]] = {}  # key -> the computation of it
        self._announcements = Announcements()
        self._writes: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def num_in_flight(self) -> int:
        return len(self._flights)

    async def wait_idle(self) -> None:
        """Until nothing is being computed."""
        await self._idle.wait()

    async def close(self) -> None:
        """Cancel what is in flight; finish what is being written to the store."""
        for flight in list(self._flights.values()):
            flight.cancel()
        if self._writes:
            await asyncio.wait(self._writes, timeout=2.0)
        if self.store is not None:
            await self.store.close()

    async def obtain(self, wanted: Wanted, lease_s: float) -> Obtained:
        """The item's embeddings, leased for so many seconds.

        Raises:
            MediaNotFoundError: nobody has them and no bytes came along; fetches of the key wait for the bytes from now on.
            QueueFullError: too many items are on their way, or leases fill the cache.
            InvalidRequestError: the bytes or options cannot be used.
        """
        key = wanted.key
        held = await self._held(key)
        if held is not None:
            tier, item = held
            return Obtained(item, self._lease(key, lease_s), tier)
        flight = self._flights.get(key)
        tier = Tier.CACHE_TIER_JOINED
        if flight is None:
            if not wanted.data:
                self._announcements.announce(key, lease_s)
                raise MediaNotFoundError("no embedding is held under this key; send the bytes", field="data")
            flight, tier = self._start(wanted), Tier.CACHE_TIER_MISS
        else:
            self.counters.num_joined += 1

        def claim(result: tuple[EncodedItem, Timings]) -> Obtained:
            item, timings = result
            # Others may have pushed it out between the end of its computation and this turn of the loop.
            self._keep(key, item)
            return Obtained(item, self._lease(key, lease_s), tier, timings)

        return await flight.join(claim)

    async def wait_for(self, key: bytes, timeout_s: float) -> EncodedItem:
        """The embeddings of a key that is held, in flight, or announced.

        Raises:
            EmbeddingUnavailableError: nobody has the key or announced it, or it did not come in time.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    held = await self._held(key, is_request=False)
                    if held is not None:
                        return held[1]
                    flight = self._flights.get(key)
                    if flight is not None:
                        return await flight.join(lambda result: result[0])
                    if not await self._announcements.wait_for(key):
                        raise EmbeddingUnavailableError("no embedding is held under this key, and none is on its way")
        except TimeoutError as error:
            raise EmbeddingUnavailableError(f"the embedding did not come within {timeout_s:g} s") from error

    async def lookup(self, keys: Sequence[bytes]) -> list[encoder_pb2.CacheTier]:
        """Where each key is; changes nothing."""
        tiers = [
            Tier.CACHE_TIER_LOCAL if key in self.cache else Tier.CACHE_TIER_JOINED if key in self._flights else Tier.CACHE_TIER_MISS
            for key in keys
        ]
        absent = [index for index, tier in enumerate(tiers) if tier == Tier.CACHE_TIER_MISS]
        if self.store is not None and absent:
            for index, is_stored in zip(absent, await self.store.has([keys[index] for index in absent]), strict=True):
                tiers[index] = Tier.CACHE_TIER_SHARED if is_stored else Tier.CACHE_TIER_MISS
        return tiers

    # -- held -------------------------------------------------------------------------------------------------------------------

    async def _held(self, key: bytes, is_request: bool = True) -> tuple[encoder_pb2.CacheTier, EncodedItem] | None:
        """The item from the cache, or from the store into the cache."""
        self.cache.expire(time.monotonic())
        item = self.cache.use(key)
        if item is not None:
            self.counters.num_local_hits += is_request
            return Tier.CACHE_TIER_LOCAL, item
        if self.store is None or key in self._flights:
            return None
        stored = await self.store.get(key)
        if stored is None:
            # It may have come in the meantime.
            item = self.cache.use(key)
            if item is None:
                return None
            self.counters.num_local_hits += is_request
            return Tier.CACHE_TIER_LOCAL, item
        self._keep(key, stored)
        self.counters.num_shared_hits += is_request
        return Tier.CACHE_TIER_SHARED, stored

    def _keep(self, key: bytes, item: EncodedItem) -> None:
        if item.num_bytes > self.cache.capacity_bytes:
            raise InvalidRequestError(
                f"the embeddings of this item have {item.num_bytes} bytes; the cache has {self.cache.capacity_bytes}",
                field="data",
                limit=self.cache.capacity_bytes,
                value=item.num_bytes,
            )
        self.cache.expire(time.monotonic())
        if not self.cache.put(key, item):
            raise QueueFullError(
                f"the cache of {self.cache.capacity_bytes} bytes is full of leases",
                limit=self.cache.capacity_bytes,
                value=self.cache.leased_bytes,
                retry_after_s=1.0,
            )

    def _lease(self, key: bytes, lease_s: float) -> str:
        return self.cache.lease(key, time.monotonic() + lease_s)

    # -- in flight --------------------------------------------------------------------------------------------------------------

    def _start(self, wanted: Wanted) -> Flight[tuple[EncodedItem, Timings]]:
        if len(self._flights) >= self._max_queue:
            raise QueueFullError(
                f"{len(self._flights)} items are being encoded or wait for it; at most {self._max_queue} may",
                limit=self._max_queue,
                value=len(self._flights),
                retry_after_s=1.0,
            )
        num_bytes = self._queued_bytes + len(wanted.data)
        if self._flights and num_bytes > self._max_queue_bytes:
            raise QueueFullError(
                f"the files of the items on their way would have {num_bytes} bytes; at most {self._max_queue_bytes} may",
                limit=self._max_queue_bytes,
                value=num_bytes,
                retry_after_s=1.0,
            )
        self.counters.num_misses += 1
        flight = Flight(self._compute(wanted), on_end=lambda: self._landed(wanted))
        self._queued_bytes = num_bytes
        self._flights[wanted.key] = flight
        self._idle.clear()
        self._announcements.begin(wanted.key)
        return flight

    def _landed(self, wanted: Wanted) -> None:
        del self._flights[wanted.key]
        self._queued_bytes -= len(wanted.data)
        if not self._flights:
            self._idle.set()

    async def _compute(self, wanted: Wanted) -> tuple[EncodedItem, Timings]:
        start_s = time.perf_counter()
        try:
            async with self._prepared:
                loop = asyncio.get_running_loop()
                prepared: Prepared = await loop.run_in_executor(
                    self._pool, self._preprocessor.prepare, wanted.modality, wanted.data, wanted.options
                )
                encoding = await self._encode(prepared.item, wanted)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self.counters.num_failed += 1
            log.info("item %s failed: %s", wanted.key.hex()[:12], error)
            raise
        self._keep(wanted.key, encoding.item)
        if self.store is not None:
            write = asyncio.create_task(self.store.put(wanted.key, encoding.item))
            self._writes.add(write)
            write.add_done_callback(self._writes.discard)
        busy_s = prepared.decode_s + prepared.preprocess_s + encoding.encode_s
        queue_s = max(0.0, time.perf_counter() - start_s - busy_s)
        return encoding.item, Timings(queue_s, prepared.decode_s, prepared.preprocess_s, encoding.encode_s)

    async def _encode(self, item: PreparedItem, wanted: Wanted) -> Encoding:
        try:
            return await asyncio.wrap_future(self._device_loop.submit(item))
        except Exception as error:
            if not wanted.options:
                raise
            # Sizes that the processor makes and the weights do not take, a deviation of 0, and the like.
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            message = f"with these options the model cannot encode it: {reason}"
            raise InvalidRequestError(message, field="processor_options") from error
