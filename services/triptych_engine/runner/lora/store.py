"""The adapters that are loaded. They are read when a request names them, and kept until others need the place."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from weakref import WeakValueDictionary

from triptych.errors import InvalidRequestError, ServiceUnavailableError

from triptych_engine.runner.lora.adapter import LoraAdapter
from triptych_engine.runner.lora.directory import AdapterFiles, LoraDirectory

log = logging.getLogger(__name__)
#: Adapters that are read at once.
_NUM_THREADS = 2


class LoraStore:
    """Loads adapters. Thread-safe.

    An adapter that was replaced on disk is read again; sequences that have the old one keep it. An adapter in use is never dropped:
    whoever uses it holds it, and so its memory is freed at the end of the last use, however that ends.

    Args:
        read: reads an adapter and checks it. Raises InvalidRequestError.
        max_loras: adapters that may be loaded at once.
    """

    def __init__(self, directory: LoraDirectory, read: Callable[[AdapterFiles], LoraAdapter], max_loras: int) -> None:
        self._directory, self._read, self._max_loras = directory, read, max_loras
        self._lock = threading.Lock()
        self._loading: dict[str, Future[LoraAdapter]] = {}
        self._threads = ThreadPoolExecutor(_NUM_THREADS, "loras")
        #: Name -> the files as they were read, and what came of it; the least recently used first.
        self._kept: OrderedDict[str, tuple[AdapterFiles, LoraAdapter | InvalidRequestError]] = OrderedDict()
        self._alive: WeakValueDictionary[str, LoraAdapter] = WeakValueDictionary()  # by digest
        self._num_reading = 0

    def load(self, name: str) -> Future[LoraAdapter]:
        """The adapter of this name as it is on disk now.

        The error of the future is a ModelNotFoundError if there is none, an InvalidRequestError if it cannot be used, and a
        ServiceUnavailableError if there is no place.
        """
        with self._lock:
            loading = self._loading.get(name)
            if loading is None:
                loading = self._loading[name] = self._threads.submit(self._load, name)
            return loading

    def loaded(self, digest: str) -> LoraAdapter | None:
        """An adapter that somebody holds."""
        return self._alive.get(digest)

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _load(self, name: str) -> LoraAdapter:
        try:
            files = self._directory.files(name)
            return self._kept_or_read(files)
        finally:
            with self._lock:
                del self._loading[name]

    def _kept_or_read(self, files: AdapterFiles) -> LoraAdapter:
        with self._lock:
            kept = self._kept.get(files.name)
            if kept is not None and kept[0] == files:
                self._kept.move_to_end(files.name)
                if isinstance(kept[1], LoraAdapter):
                    return kept[1]
                raise InvalidRequestError(kept[1].message, field="lora", value=files.name)
            self._kept.pop(files.name, None)
            del kept
            self._make_room()
            self._num_reading += 1
        adapter: LoraAdapter | InvalidRequestError
        try:
            adapter = self._read(files)
            log.info("adapter %s is loaded: %.1f MB, digest %s", adapter.name, adapter.num_bytes / 1e6, adapter.digest[:12])
        except InvalidRequestError as error:
            log.warning("%s", error.message)
            adapter = error
        finally:
            with self._lock:
                self._num_reading -= 1
        with self._lock:
            if isinstance(adapter, LoraAdapter):
                # The same bytes under another name, or again under this one, are the same adapter.
                adapter = self._alive.setdefault(adapter.digest, adapter)
            self._kept[files.name] = files, adapter
        if isinstance(adapter, LoraAdapter):
            return adapter
        raise adapter

    def _make_room(self) -> None:
        """Drop what is not in use until there is a place. Raises ServiceUnavailableError if all is in use."""
        for name in list(self._kept):
            if len(self._alive) + self._num_reading < self._max_loras:
                return
            files, kept = self._kept.pop(name)
            digest = kept.digest if isinstance(kept, LoraAdapter) else ""
            del kept
            if (used := self._alive.get(digest)) is not None:
                self._kept[name] = files, used
            del used
        if len(self._alive) + self._num_reading >= self._max_loras:
            told = f"{self._max_loras} adapters are in use (max_loras); try again later"
            raise ServiceUnavailableError(told, retry_after_s=5.0)
