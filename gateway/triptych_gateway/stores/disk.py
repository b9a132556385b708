"""The directory of files: contents by id, what is arriving, journals of batches."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import logging
import os
import secrets
import shutil
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from triptych.errors import ServiceUnavailableError, StartupError

log = logging.getLogger(__name__)
#: Space that is left to others on the file system, in bytes.
MIN_FREE_BYTES = 256 << 20
#: What arrives is written in blocks of this size, and of files that are joined as much is read at once.
_BLOCK_BYTES = 1 << 20
#: Contents and arrivals that no record names are removed when they are older, in seconds: a process that ended left them.
_ORPHAN_S = 86400.0
_RETRY_AFTER_S = 60.0


class Disk:
    """A directory, which several gateways of one machine may share.

    Raises:
        StartupError: it cannot be written.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._contents, self._incoming, self._batches = (directory / name for name in ("contents", "incoming", "batches"))
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            for folder in (self._contents, self._incoming, self._batches):
                folder.mkdir(exist_ok=True, mode=0o700)
        except OSError as error:
            raise StartupError(f"cannot keep files in {directory} ({error.strerror or error}); see --files-dir") from error

    def content(self, name: str) -> Path:
        """The content of a file, or of a part of one.

        Args:
            name: an id that was made here. It is never a client's word.
        """
        return self._contents / name

    def journal(self, batch_id: str) -> Path:
        """The journal of a batch."""
        return self._batches / f"{batch_id}.jsonl"

    @asynccontextmanager
    async def arriving(self, check: Callable[[int], None] = lambda num_bytes: None) -> AsyncIterator[Arrival]:
        """A place for bytes that arrive. What is not kept is removed at the end of the block.

        Args:
            check: called with the size so far; raises what ends the arrival.
        """
        path = self._incoming / secrets.token_hex(12)
        arrival = Arrival(path, check)
        try:
            yield arrival
        except OSError as error:
            raise no_space(error) from error
        finally:
            await asyncio.to_thread(arrival.discard)

    def remove(self, names: Collection[str]) -> None:
        """Remove contents."""
        for name in names:
            self.content(name).unlink(missing_ok=True)

    def sweep(self, contents: Collection[str], batches: Collection[str]) -> None:
        """Remove what processes that ended have left.

        Args:
            contents: names of the contents that are to stay.
            batches: ids of the batches whose journals are.
        """
        known = {*map(self.content, contents), *map(self.journal, batches)}
        for path in (path for folder in (self._contents, self._incoming, self._batches) for path in folder.iterdir()):
            with suppress(FileNotFoundError):
                if path not in known and path.stat().st_mtime < time.time() - _ORPHAN_S:
                    path.unlink()


class Arrival:
    """Bytes that arrive, in a file of their own until they are kept."""

    def __init__(self, path: Path, check: Callable[[int], None]) -> None:
        self._path, self._check = path, check
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._block = bytearray()
        self.num_bytes = 0

    async def write(self, data: bytes | memoryview) -> None:
        """Append bytes that have arrived. Raises what `check` does; OSError, if the disk would be full."""
        self._take(data)
        if len(self._block) >= _BLOCK_BYTES:
            await asyncio.to_thread(self.flush)

    def append(self, data: bytes | memoryview) -> None:
        """The same for a thread of its own, which may wait for the disk."""
        self._take(data)
        if len(self._block) >= _BLOCK_BYTES:
            self.flush()

    def join(self, parts: Sequence[Path]) -> str:
        """Append the contents of files, in such a thread. Returns the MD5 of all of them, in hex."""
        # It tells a client that its file came whole; nothing else relies on it.
        digest = hashlib.md5(usedforsecurity=False)
        for part in parts:
            with part.open("rb") as file:
                while block := file.read(_BLOCK_BYTES):
                    digest.update(block)
                    self.append(block)
        self.flush()
        return digest.hexdigest()

    def flush(self) -> None:
        """Write what was appended, in such a thread."""
        block, self._block = self._block, bytearray()
        if shutil.disk_usage(self._path.parent).free < MIN_FREE_BYTES + len(block):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        rest = memoryview(block)
        while rest:
            rest = rest[os.write(self._file, rest) :]

    def keep(self, path: Path) -> None:
        """Give the whole content its place, in such a thread. It is there after a loss of power, too."""
        self.flush()
        os.fsync(self._file)
        self._path.replace(path)

    def discard(self) -> None:
        """Close the file, and remove it unless it was kept."""
        os.close(self._file)
        self._path.unlink(missing_ok=True)

    def _take(self, data: bytes | memoryview) -> None:
        self._block += data
        self.num_bytes += len(data)
        self._check(self.num_bytes)


def no_space(error: OSError) -> ServiceUnavailableError:
    """The client's view of a file that cannot be written."""
    log.warning("a file could not be written: %s", error)
    reason = "its disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "it failed"
    return ServiceUnavailableError(
        f"the directory of files cannot be used ({reason}); try again later", retry_after_s=_RETRY_AFTER_S
    )
