"""The batching loop: one thread owns the device and its towers."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from triptych.errors import InternalError, ServiceUnavailableError
from triptych_common.telemetry.histogram import SIZES, TOKENS, Histogram

from triptych_encoder.cache.item import EncodedItem, PreprocessedItem, encoded

log = logging.getLogger(__name__)


class ItemEncoder(Protocol):
    """The interface of the towers that the loop needs."""

    def signature(self, item: PreprocessedItem) -> tuple[object, ...]: ...
    def encode(self, items: Sequence[PreprocessedItem]) -> list[dict[str, torch.Tensor]]: ...


@dataclass(frozen=True)
class Encoding:
    """An item's embeddings, and the times that they took in seconds."""

    item: EncodedItem
    queue_s: float
    encode_s: float


@dataclass
class _Job:
    item: PreprocessedItem
    signature: tuple[object, ...]
    future: Future[Encoding] = field(default_factory=Future)
    submitted_s: float = field(default_factory=time.perf_counter)


def _asleep() -> ServiceUnavailableError:
    return ServiceUnavailableError("the encoder's towers are not loaded", retry_after_s=5.0)


class DeviceLoop:
    """Encodes submitted items in batches of equal signature, oldest first.

    It has no limit of its own: the caller bounds the queue. A job that is cancelled before its batch begins costs nothing.

    Args:
        max_batch_embeddings: most embeddings of a batch. A larger item is encoded alone.
        prepare_thread: runs once at the start of the thread, e.g. to set its priority.
        prepare_batch: runs before each batch, e.g. to choose the number of compute threads.
    """

    def __init__(
        self,
        max_batch_embeddings: int,
        prepare_thread: Callable[[], None] = lambda: None,
        prepare_batch: Callable[[], None] = lambda: None,
    ) -> None:
        self._budget = max_batch_embeddings
        self._prepare_thread, self._prepare_batch = prepare_thread, prepare_batch
        self._jobs: deque[_Job | Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._tower: ItemEncoder | None = None
        #: Items and embeddings of each batch. The device thread writes them.
        self.batch_size, self.batch_embeddings = Histogram(SIZES), Histogram(TOKENS)
        self._thread = threading.Thread(target=self._run, name="device", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def attach(self, tower: ItemEncoder, *, alone: bool = False) -> None:
        """Use these towers. Must be called before the first `submit`, and after `detach`.

        Args:
            alone: encode each item in a separate batch.
        """
        self._tower = tower
        if alone:
            self._budget = 0

    def detach(self) -> None:
        """Forget the towers. Called in the device thread."""
        self._tower = None

    @property
    def has_tower(self) -> bool:
        """Whether towers are attached."""
        return self._tower is not None

    def call(self, work: Callable[[], Any]) -> Future[Any]:
        """Run a function in the device thread, after all work that was submitted before."""
        future: Future[Any] = Future()

        def run() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except BaseException as error:
                    future.set_exception(error)

        self._enqueue(run)
        return future

    def submit(self, item: PreprocessedItem) -> Future[Encoding]:
        """Encode an item."""
        tower = self._tower  # another thread may detach it
        if tower is None:
            raise _asleep()
        job = _Job(item, tower.signature(item))
        self._enqueue(job)
        return job.future

    @property
    def queue_length(self) -> int:
        return len(self._jobs)

    def stop(self) -> None:
        """Finish the current batch, cancel the waiting jobs, and end the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()
        for job in self._jobs:
            if isinstance(job, _Job):
                job.future.cancel()

    def _enqueue(self, job: _Job | Callable[[], None]) -> None:
        with self._changed:
            self._jobs.append(job)
            self._changed.notify()

    def _run(self) -> None:
        self._prepare_thread()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._stopping)
                if self._stopping:
                    return
                first = self._jobs.popleft()
                batch = self._gather(first) if isinstance(first, _Job) else []
            if isinstance(first, _Job):
                self._encode([job for job in batch if job.future.set_running_or_notify_cancel()])
            else:
                first()

    def _gather(self, first: _Job) -> list[_Job]:
        """Remove the jobs from the queue that can share a batch with the oldest job."""
        batch, rest = [first], deque[_Job | Callable[[], None]]()
        room = self._budget - first.item.num_tokens
        for job in self._jobs:
            if isinstance(job, _Job) and job.future.cancelled():
                continue
            if isinstance(job, _Job) and job.signature == first.signature and job.item.num_tokens <= room:
                batch.append(job)
                room -= job.item.num_tokens
            else:
                rest.append(job)
        self._jobs = rest
        return batch

    def _encode(self, batch: list[_Job]) -> None:
        if self._tower is None:
            for job in batch:
                job.future.set_exception(_asleep())
            return
        if not batch:
            return
        start_s = time.perf_counter()
        self._prepare_batch()
        try:
            results = self._tower.encode([job.item for job in batch])
        except Exception as error:
            if len(batch) == 1:
                log.error("encoding failed", exc_info=error)
                batch[0].future.set_exception(error)
                return
            log.warning("a batch of %d failed (%s); its items are encoded one by one", len(batch), error)
            for job in batch:
                self._encode([job])
            return
        encode_s = time.perf_counter() - start_s
        self.batch_size.observe(len(batch))
        self.batch_embeddings.observe(sum(job.item.num_tokens for job in batch))
        for job, embeddings in zip(batch, results, strict=True):
            self._finish(job, embeddings, start_s - job.submitted_s, encode_s)

    def _finish(self, job: _Job, embeddings: Mapping[str, torch.Tensor], queue_s: float, encode_s: float) -> None:
        try:
            if not all(torch.isfinite(tensor).all() for tensor in embeddings.values()):
                raise InternalError("the towers gave embeddings that are not numbers")
            job.future.set_result(Encoding(encoded(job.item, embeddings), queue_s, encode_s))
        except Exception as error:
            job.future.set_exception(error)
