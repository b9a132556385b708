"""The third tier of the prefix cache: blocks on disk, one file each.

Blocks come here when the host's memory needs their slots, and go back to it before a request that begins with them is scheduled.
They are still there after a restart. A file begins with the digest of what follows, so one that is damaged, cut or another's is
found out when it is read, and removed.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import queue
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock, Timeout

from triptych_engine.kv_offload.host_tier import HostTier

log = logging.getLogger(__name__)
_DIGEST_BYTES = 16
#: Blocks that wait to be written. Further ones are dropped.
_MAX_WAITING_BYTES = 256 << 20


class DiskTier:
    """Files of blocks in a directory. All methods may be called on any thread.

    Args:
        directory: has one directory for each layout, and further ones for engines that use the same layout at the same time.
        max_bytes: most bytes of the files of this engine.
        layout: what the bytes of a block depend on, in hexadecimal digits.
        tier: where blocks come from and go to.

    Raises:
        OSError: the directory cannot be used.
    """

    def __init__(self, directory: Path, max_bytes: int, layout: str, tier: HostTier) -> None:
        self._max_bytes, self._tier = max_bytes, tier
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory, self._used = _own_part(directory, layout[:32])
        self._directory.mkdir(mode=0o700, exist_ok=True)
        self._file_bytes = _DIGEST_BYTES + sum(tier.block_bytes)
        self._lock = threading.Lock()
        #: Least recently used first.
        self._paths: OrderedDict[bytes, Path] = OrderedDict()
        #: What will be in the files of blocks that are being written.
        self._unwritten: dict[bytes, bytes] = {}
        self.num_stored = self.num_loaded = self.num_corrupt = self.num_dropped = 0
        self._find_files()
        self._queue: queue.Queue[tuple[bytes, bytes] | None] = queue.Queue(max(1, _MAX_WAITING_BYTES // self._file_bytes))
        self._writer = threading.Thread(target=self._write_all, name="blocks to disk", daemon=True)
        self._writer.start()
        tier.on_evicted = self.store

    @property
    def num_blocks(self) -> int:
        return len(self._paths)

    def store(self, block_hash: bytes, digest: bytes, parts: Sequence[memoryview]) -> None:
        """Write a block, later. Does not block; drops it if too many wait."""
        with self._lock:
            if block_hash in self._paths:
                self._paths.move_to_end(block_hash)
                return
            if block_hash in self._unwritten:
                return
            data = self._unwritten[block_hash] = b"".join((digest, *parts))
        try:
            self._queue.put_nowait((block_hash, data))
        except queue.Full:
            self.num_dropped += 1
            self._unwritten.pop(block_hash, None)

    def holds(self, block_hash: bytes) -> bool:
        """Whether a block is on disk."""
        return block_hash in self._paths or block_hash in self._unwritten

    def load(self, hashes: Sequence[bytes], first: int = 0) -> None:
        """Bring blocks of a chain to the host's memory, as far as they are there or here. Blocks until they are read.

        Args:
            first: those before it need not be brought.
        """
        with self._tier.pinned_chain() as keep:
            for block_hash in hashes[:first]:
                keep(block_hash)
            for block_hash in hashes[first:]:
                if keep(block_hash):
                    continue
                if not self.holds(block_hash) or (slot := self._tier.reserve(block_hash)) is None:
                    return
                if not self._read(block_hash, slot) or not keep(block_hash):
                    return

    def close(self) -> None:
        """Write what waits, and end."""
        self._tier.on_evicted = None
        self._queue.put(None)
        self._writer.join()
        self._used.release()

    def clear(self) -> None:
        """Remove all blocks."""
        with self._lock:
            paths = list(self._paths.values())
            self._paths.clear()
            self._unwritten.clear()
        for path in paths:
            path.unlink(missing_ok=True)

    def _read(self, block_hash: bytes, slot: int) -> bool:
        """Read a block into a slot. False if that is not possible; then it is here no longer."""
        with self._lock:
            data = self._unwritten.get(block_hash, b"")
            path = self._paths.get(block_hash)
            if path is not None:
                self._paths.move_to_end(block_hash)
        if not data and path is not None:
            with contextlib.suppress(OSError):
                data = path.read_bytes()
        if len(data) != self._file_bytes:
            self._tier.abandon(slot)
        else:
            start = _DIGEST_BYTES
            for part in self._tier.bytes_of(slot):
                part[:] = data[start : start + len(part)]
                start += len(part)
            if self._tier.complete(slot, data[:_DIGEST_BYTES]):
                self.num_loaded += 1
                return True
        self.num_corrupt += 1
        self._remove(block_hash)
        return False

    def _write_all(self) -> None:
        while (block := self._queue.get()) is not None:
            block_hash, data = block
            try:
                if self._unwritten.get(block_hash) is data:  # else all was cleared
                    self._write(block_hash, data)
            except Exception as error:  # without this thread, nobody would take from the queue
                self.num_dropped += 1
                log.warning("a block could not be written to %s: %s", self._directory, error)
            finally:
                with self._lock:
                    if self._unwritten.get(block_hash) is data:
                        del self._unwritten[block_hash]
                self._queue.task_done()

    def _write(self, block_hash: bytes, data: bytes) -> None:
        path = self._directory / block_hash.hex()
        descriptor, name = tempfile.mkstemp(dir=self._directory, prefix=".")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            os.replace(name, path)  # a file with the name of a block is whole
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        with self._lock:
            is_wanted = self._unwritten.get(block_hash) is data
            if is_wanted:
                self._paths[block_hash] = path
                self.num_stored += 1
        if not is_wanted:
            path.unlink(missing_ok=True)
        self._keep_to_size()

    def _keep_to_size(self) -> None:
        """Remove the least recently used blocks until the others fit."""
        while True:
            with self._lock:
                if len(self._paths) * self._file_bytes <= self._max_bytes:
                    return
                _, path = self._paths.popitem(last=False)
            path.unlink(missing_ok=True)

    def _remove(self, block_hash: bytes) -> None:
        with self._lock:
            path = self._paths.pop(block_hash, None)
        if path is not None:
            path.unlink(missing_ok=True)

    def _find_files(self) -> None:
        """What an earlier process has left. Files that it had not finished are removed."""
        files = []
        for path in self._directory.iterdir():
            if path.name.startswith(".") or len(path.name) != 64:
                path.unlink(missing_ok=True)
            else:
                files.append((path.stat().st_mtime, path))
        for _, path in sorted(files):
            with contextlib.suppress(ValueError):
                self._paths[bytes.fromhex(path.name)] = path
        self._keep_to_size()


def _own_part(directory: Path, layout: str) -> tuple[Path, FileLock]:
    """The first part of a directory that no other engine uses, and what keeps others from it."""
    for number in itertools.count(1):
        part = directory / (layout if number == 1 else f"{layout}-{number}")
        lock = FileLock(part.with_name(f"{part.name}.lock"), timeout=0)
        with contextlib.suppress(Timeout):
            lock.acquire()
            return part, lock
    raise AssertionError
