"""An SQLite file. All its statements run in one thread, so that they do not block the event loop."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from triptych.errors import ServiceUnavailableError, StartupError

log = logging.getLogger(__name__)
T = TypeVar("T")
#: How long a statement waits for another process that writes to the file, in seconds.
_BUSY_TIMEOUT_S = 5.0
#: Why a statement fails that others before and after it do not fail for. A system's limit on files looks like a damaged disk.
_REASONS = {
    sqlite3.SQLITE_FULL: "its disk is full",
    sqlite3.SQLITE_IOERR: "its disk is full or damaged",
    sqlite3.SQLITE_BUSY: "another process writes to it",
    sqlite3.SQLITE_READONLY: "its file cannot be written",
}


class Database:
    """An SQLite file.

    Args:
        path: the file; it is created with its folder. `:memory:` keeps all in memory.
        schema: statements that make the tables where they are missing.
        what: what is kept in it, for messages: "the store of responses".
        setting: the flag that names it.

    Raises:
        StartupError: the file cannot be opened.
    """

    def __init__(self, path: str, schema: str, what: str, setting: str) -> None:
        self._what = what
        self._is_closed = False
        self._thread = ThreadPoolExecutor(1, what.split()[-1])
        try:
            self._connection = self._thread.submit(_open, path, schema).result()
        except (sqlite3.Error, OSError) as error:
            self._thread.shutdown()
            raise StartupError(f"cannot open {path} as {what} ({error}); see {setting}") from error

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run statements, and what belongs to them, in the database's thread. Raises ServiceUnavailableError if they fail."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work, self._connection)
        except sqlite3.Error as error:
            log.warning("%s failed: %s", self._what, error)
            raise ServiceUnavailableError(f"{self._what} cannot be used ({_reason(error)}); try again") from error

    async def close(self) -> None:
        """Close the file. May be called twice."""
        if not self._is_closed:
            self._is_closed = True
            await self.run(sqlite3.Connection.close)
            self._thread.shutdown()


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """What the block reads stays as it is until the block has written, also for other processes."""
    with database:
        database.execute("BEGIN IMMEDIATE")
        yield


def _open(path: str, schema: str) -> sqlite3.Connection:
    if path != ":memory:":
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    database = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S)
    # With the write-ahead log, readers do not wait for a writer, and a commit does not wait for the disk.
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = NORMAL")
    database.executescript(schema)
    return database


def _reason(error: sqlite3.Error) -> str:
    """What a client may know of it: SQLite's texts may name files."""
    return _REASONS.get((error.sqlite_errorcode if hasattr(error, "sqlite_errorcode") else 0) & 0xFF, "it failed")
