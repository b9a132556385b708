"""The encoding queue: limits, decoding in a thread pool, encoding on the device.

The queue belongs to the event loop. The pool's threads decode and preprocess, and the device thread encodes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, Protocol

from triptych.errors import InvalidRequestError, QueueFullError
from triptych.v1 import common_pb2
from triptych_common.host.fair_share import FairShare, ServiceShare
from triptych_common.telemetry.histogram import SECONDS, Histograms
from triptych_common.telemetry.trace_context import TraceContext

from triptych_encoder.cache.item import EncodedItem, PreprocessedItem
from triptych_encoder.cache.shared_task import SharedTask
from triptych_encoder.media.preprocess import PreprocessResult
from triptych_encoder.tower.device_loop import DeviceLoop, Encoding

log = logging.getLogger(__name__)
_RETRY_AFTER_S = 1.0


class ItemPreprocessor(Protocol):
    """The interface of the preprocessor that the queue needs."""

    def prepare(self, modality: common_pb2.Modality, data: bytes, options: dict[str, Any]) -> PreprocessResult: ...


@dataclass(frozen=True)
class ItemRequest:
    """An item whose embeddings a caller requests."""

    key: bytes
    modality: common_pb2.Modality
    #: The raw file; empty if the caller sent only the key.
    data: bytes
    options: dict[str, Any]
    #: The place of the caller's work in its trace.
    trace: TraceContext | None = None
    tenant: str = ""


@dataclass(frozen=True)
class StageTimes:
    """Wall time of an item's stages, in seconds."""

    queue_s: float = 0.0
    decode_s: float = 0.0
    preprocess_s: float = 0.0
    encode_s: float = 0.0


class StageSeconds:
    """Times of all encoded items by stage and modality, in seconds."""

    def __init__(self) -> None:
        self.queue, self.decode, self.preprocess, self.encode = (Histograms(SECONDS) for _ in range(4))

    def observe(self, modality: common_pb2.Modality, times: StageTimes) -> None:
        """Count an item."""
        name = common_pb2.Modality.Name(modality).removeprefix("MODALITY_").lower()
        self.queue[name].observe(times.queue_s)
        self.decode[name].observe(times.decode_s)
        self.preprocess[name].observe(times.preprocess_s)
        self.encode[name].observe(times.encode_s)


@dataclass(frozen=True)
class EncodeOutcome:
    """A freshly encoded item, and the time that it took."""

    item: EncodedItem
    times: StageTimes
    #: The trace that the computation is a part of: that of the first caller.
    trace: TraceContext | None = None


@dataclass(frozen=True)
class QueueLimits:
    """The limits of the queue."""

    #: Most items in the queue.
    max_items: int
    #: Most bytes of these items' files together. A larger file is accepted when the queue is empty.
    max_bytes: int
    #: Most items that are being decoded, or are decoded but not yet encoded. This bounds the memory of their pixels and samples.
    max_prepared: int


class EncodingQueue:
    """Encodes items. Each key is encoded once at a time, however many callers wait for it.

    Args:
        on_encoded: called with each key and its embeddings before any caller gets them. If it raises, the callers get that error.
    """

    def __init__(
        self,
        preprocessor: ItemPreprocessor,
        device_loop: DeviceLoop,
        pool: Executor,
        limits: QueueLimits,
        on_encoded: Callable[[bytes, EncodedItem], None],
    ) -> None:
        self._preprocessor, self._device_loop, self._pool = preprocessor, device_loop, pool
        self._limits, self._on_encoded = limits, on_encoded
        self._tasks: dict[bytes, SharedTask[EncodeOutcome]] = {}  # key -> its computation
        self._items, self._bytes = ServiceShare(limits.max_items), ServiceShare(limits.max_bytes)
        # All of it may be one tenant's. Of those who wait, the tenant that has least in it is next.
        self._prepared = FairShare(limits.max_prepared, max_tenants=1)
        self._idle = asyncio.Event()
        self._idle.set()
        #: Number of items that could not be encoded.
        self.num_failed = 0
        self.seconds = StageSeconds()

    def __len__(self) -> int:
        return len(self._tasks)

    def find(self, key: bytes) -> SharedTask[EncodeOutcome] | None:
        """The running computation of a key, if there is one."""
        return self._tasks.get(key)

    def start(self, request: ItemRequest) -> SharedTask[EncodeOutcome]:
        """Start to encode an item whose key is not in the queue.

        Raises:
            QueueFullError: the queue is at one of its limits, or the tenant holds its share of it.
        """
        tenant, num_items, num_bytes = request.tenant, len(self._tasks), self._bytes.used + len(request.data)
        if not self._items.may_take(tenant):
            message = f"{num_items} items are being encoded or wait for it; at most {self._limits.max_items} may"
            if num_items < self._limits.max_items:
                message = f"{self._items.used_by(tenant)} items of this tenant are being encoded or wait, its share of the queue"
            raise QueueFullError(message, limit=self._limits.max_items, value=num_items, retry_after_s=_RETRY_AFTER_S)
        if self._tasks and not self._bytes.may_take(tenant, len(request.data)):
            message = f"the files in the queue would have {num_bytes} bytes; at most {self._limits.max_bytes} may"
            if num_bytes <= self._limits.max_bytes:
                message = f"this tenant's files in the queue have {self._bytes.used_by(tenant)} bytes, its share"
            raise QueueFullError(message, limit=self._limits.max_bytes, value=num_bytes, retry_after_s=_RETRY_AFTER_S)
        self._items.add(tenant)
        self._bytes.add(tenant, len(request.data))
        task = SharedTask(self._encode(request), on_end=lambda: self._remove(request))
        self._tasks[request.key] = task
        self._idle.clear()
        return task

    def cancel_all(self) -> None:
        """Cancel all computations."""
        for task in list(self._tasks.values()):
            task.cancel()

    async def wait_idle(self) -> None:
        """Wait until the queue is empty."""
        await self._idle.wait()

    def _remove(self, request: ItemRequest) -> None:
        del self._tasks[request.key]
        self._items.give_back(request.tenant)
        self._bytes.give_back(request.tenant, len(request.data))
        if not self._tasks:
            self._idle.set()

    async def _encode(self, request: ItemRequest) -> EncodeOutcome:
        start_s = time.perf_counter()
        try:
            async with self._prepared.held(request.tenant):
                loop = asyncio.get_running_loop()
                prepared: PreprocessResult = await loop.run_in_executor(
                    self._pool, self._preprocessor.prepare, request.modality, request.data, request.options
                )
                encoding = await self._run_tower(prepared.item, request)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self.num_failed += 1
            log.info("item %s failed: %s", request.key.hex()[:12], error)
            raise
        self._on_encoded(request.key, encoding.item)
        busy_s = prepared.decode_s + prepared.preprocess_s + encoding.encode_s
        queue_s = max(0.0, time.perf_counter() - start_s - busy_s)
        times = StageTimes(queue_s, prepared.decode_s, prepared.preprocess_s, encoding.encode_s)
        self.seconds.observe(request.modality, times)
        return EncodeOutcome(encoding.item, times, request.trace)

    async def _run_tower(self, item: PreprocessedItem, request: ItemRequest) -> Encoding:
        try:
            return await asyncio.wrap_future(self._device_loop.submit(item))
        except Exception as error:
            if not request.options:
                raise
            # Blame the options, e.g. a size that the weights do not accept, or a standard deviation of 0.
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            message = f"with these options the model cannot encode it: {reason}"
            raise InvalidRequestError(message, field="processor_options") from error
