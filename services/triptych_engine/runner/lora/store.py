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
        #: Name -> the files as they were read, and the adapter, or why it cannot be used; the least recently used first.
        self._kept: OrderedDict[str, tuple[AdapterFiles, LoraAdapter | str]] = OrderedDict()
        self._alive: WeakValueDictionary[str, LoraAdapter] = WeakValueDictionary()  # by digest
        self._num_reading = 0

    def load(self, name: str) -> Future[LoraAdapter]:
        """The adapter of this name as it is on disk now.

        The error of the future is a ModelNotFoundError if there is none, an InvalidRequestError if it cannot be used, a
        ServiceUnavailableError if there is no place, and a MemoryError.
        """
        with self._lock:
            loading = self._loading.get(name)
            if loading is None:
                loading = self._loading[name] = self._threads.submit(self._load, name)
            return loading

    def loaded(self, digest: str) -> LoraAdapter | None:
        """An adapter that somebody holds."""
        return self._alive.get(digest)

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
            if kept is None or kept[0] != files:
                self._kept.pop(files.name, None)
                kept = None
                self._make_room()
                self._num_reading += 1
            else:
                self._kept.move_to_end(files.name)
        found = self._read_or_refusal(files) if kept is None else kept[1]
        if isinstance(found, str):
            raise InvalidRequestError(found, field="lora", value=files.name)
        return found

    def _read_or_refusal(self, files: AdapterFiles) -> LoraAdapter | str:
        """The adapter, or why it cannot be used. The error itself is not kept: its frames hold the weights."""
        found: LoraAdapter | str = ""
        try:
            found = self._read(files)
            log.info("adapter %s is loaded: %.1f MB, digest %s", files.name, found.num_bytes / 1e6, found.digest[:12])
        except InvalidRequestError as error:
            found = error.message
            log.warning("%s", found)
        except MemoryError:
            raise
        except Exception as error:  # libraries read the files, which may be anybody's
            found = f"the adapter {files.name!r} cannot be read ({type(error).__name__}); the engine's log has the details"
            log.exception("the adapter %s cannot be read", files.name)
        finally:
            with self._lock:
                self._num_reading -= 1
                if isinstance(found, LoraAdapter):
                    # The same bytes under another name, or again under this one, are the same adapter.
                    found = self._alive.setdefault(found.digest, found)
                if found:
                    self._kept[files.name] = files, found
        return found

    def _make_room(self) -> None:
        """Drop what is not in use until there is a place. Raises ServiceUnavailableError if all is in use."""
        for name in list(self._kept):
            if len(self._alive) + self._num_reading < self._max_loras:
                return
            if name in self._kept and isinstance(adapter := self._kept[name][1], LoraAdapter):
                digest = adapter.digest
                del adapter
                self._drop(digest)
        if len(self._alive) + self._num_reading >= self._max_loras:
            told = f"{self._max_loras} adapters are in use (max_loras); try again later"
            raise ServiceUnavailableError(told, retry_after_s=5.0)

    def _drop(self, digest: str) -> None:
        """Drop an adapter, under all of its names, if nobody uses it."""
        files = [kept[0] for kept in self._kept.values() if isinstance(kept[1], LoraAdapter) and kept[1].digest == digest]
        for one in files:
            del self._kept[one.name]
        if (used := self._alive.get(digest)) is not None:
            self._kept.update((one.name, (one, used)) for one in files)
