"""Responses in an SQLite file. They survive a restart of the gateway."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple
from functools import partial
from pathlib import Path
from typing import TypeVar

from triptych.errors import ServiceUnavailableError, StartupError

from triptych_gateway.stores.store import Clock, ResponseStore, StoredResponse, walked, wall_clock

log = logging.getLogger(__name__)
T = TypeVar("T")
_SCHEMA = """
CREATE TABLE IF NOT EXISTS responses (
    id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    previous_id TEXT,
    response BLOB NOT NULL,
    input_items BLOB NOT NULL,
    events BLOB NOT NULL,
    live_until_s REAL NOT NULL,
    expires_s REAL NOT NULL,
    num_bytes INTEGER NOT NULL
);
DROP INDEX IF EXISTS responses_by_age;
CREATE INDEX IF NOT EXISTS responses_by_expiry ON responses (expires_s);
CREATE INDEX IF NOT EXISTS responses_by_tenant ON responses (tenant, expires_s, num_bytes);
"""
#: How long a statement waits for another process that writes to the file, in seconds.
_BUSY_TIMEOUT_S = 5.0
#: Why a statement fails that others before and after it do not fail for. A system's limit on files looks like a damaged disk.
_REASONS = {
    sqlite3.SQLITE_FULL: "its disk is full",
    sqlite3.SQLITE_IOERR: "its disk is full or damaged",
    sqlite3.SQLITE_BUSY: "another process writes to it",
    sqlite3.SQLITE_READONLY: "its file cannot be written",
}
#: Room is made when this many bytes were written, because counting all bytes reads the whole index.
_CHECK_EVERY_BYTES = 8 << 20


class SqliteStore(ResponseStore):
    """A store in a file. All statements run in one thread, so that they do not block the event loop.

    Args:
        path: the file; it is created with its folder. `:memory:` keeps all in memory.
        ttl_s: how long a response is kept after it was put.
        max_bytes: size of all responses. When it is full, the tenants that keep most lose their oldest.

    Raises:
        StartupError: the file cannot be opened.
    """

    def __init__(self, path: str, ttl_s: float, max_bytes: int, clock: Clock = wall_clock) -> None:
        self._ttl_s, self._max_bytes, self._clock = ttl_s, max_bytes, clock
        self._is_closed = False
        self._num_unchecked_bytes = _CHECK_EVERY_BYTES
        self._thread = ThreadPoolExecutor(1, "responses")
        try:
            self._database = self._thread.submit(_open, path).result()
        except (sqlite3.Error, OSError) as error:
            self._thread.shutdown()
            raise StartupError(f"cannot open {path} as the store of responses ({error}); see --response-store") from error

    async def put(self, record: StoredResponse) -> None:
        await self._run(lambda: self._put(record))

    async def replace(self, record: StoredResponse) -> bool:
        return await self._run(lambda: self._replace(record))

    async def walk(self, tenant: str, response_id: str, max_bytes: int) -> list[StoredResponse]:
        return await self._run(lambda: walked(partial(self._get, tenant), response_id, max_bytes))

    async def delete(self, tenant: str, response_id: str) -> bool:
        return await self._run(lambda: self._delete(tenant, response_id))

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            await self._run(self._database.close)
            self._thread.shutdown()

    async def _run(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except sqlite3.Error as error:
            log.warning("the store of responses failed: %s", error)
            raise ServiceUnavailableError(f"the store of responses cannot be used ({_reason(error)}); try again") from error

    def _put(self, record: StoredResponse) -> None:
        row = (*astuple(record), self._clock() + self._ttl_s, record.num_bytes)
        with self._database:
            self._database.execute("INSERT OR REPLACE INTO responses VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
            self._make_room(record.num_bytes)

    def _replace(self, record: StoredResponse) -> bool:
        with self._database:
            done = self._database.execute(
                "UPDATE responses SET response = ?, input_items = ?, events = ?, live_until_s = ?, num_bytes = ? "
                "WHERE id = ? AND tenant = ? AND live_until_s > 0",
                (*astuple(record)[3:], record.num_bytes, record.id, record.tenant),
            )
            self._make_room(record.num_bytes)
        return done.rowcount == 1

    def _get(self, tenant: str, response_id: str) -> StoredResponse | None:
        row = self._database.execute(
            "SELECT id, tenant, previous_id, response, input_items, events, live_until_s FROM responses "
            "WHERE id = ? AND tenant = ? AND expires_s > ?",
            (response_id, tenant, self._clock()),
        ).fetchone()
        return None if row is None else StoredResponse(*row)

    def _delete(self, tenant: str, response_id: str) -> bool:
        with self._database:
            done = self._database.execute(
                "DELETE FROM responses WHERE id = ? AND tenant = ? AND expires_s > ?", (response_id, tenant, self._clock())
            )
        return done.rowcount == 1

    def _make_room(self, num_new_bytes: int) -> None:
        """Drop what has expired, and beyond the limit the oldest responses of the tenants that keep most."""
        self._num_unchecked_bytes += num_new_bytes
        if self._num_unchecked_bytes < min(_CHECK_EVERY_BYTES, self._max_bytes // 8):
            return
        self._num_unchecked_bytes = 0
        self._database.execute("DELETE FROM responses WHERE expires_s <= ?", (self._clock(),))
        sizes = dict(self._database.execute("SELECT tenant, SUM(num_bytes) FROM responses GROUP BY tenant"))
        part = equal_part(sizes.values(), self._max_bytes)
        for tenant in (tenant for tenant, size in sizes.items() if size > part):
            self._database.execute(
                "DELETE FROM responses WHERE id IN (SELECT id FROM (SELECT id, SUM(num_bytes) OVER "
                "(ORDER BY expires_s DESC, rowid DESC) AS total FROM responses WHERE tenant = ?) WHERE total > ?)",
                (tenant, part),
            )


def equal_part(sizes: Iterable[int], limit: int) -> int:
    """The largest size that each one may have so that all have at most `limit` together. Those that have less keep all of it."""
    ordered = sorted(sizes)
    for number, size in enumerate(ordered):
        num_left = len(ordered) - number
        if size * num_left > limit:
            return limit // num_left
        limit -= size
    return ordered[-1] if ordered else limit


def _open(path: str) -> sqlite3.Connection:
    if path != ":memory:":
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    database = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S)
    # With the write-ahead log, readers do not wait for a writer, and a commit does not wait for the disk.
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = NORMAL")
    database.executescript(_SCHEMA)
    return database


def _reason(error: sqlite3.Error) -> str:
    """What a client may know of it: SQLite's texts may name files."""
    return _REASONS.get((error.sqlite_errorcode if hasattr(error, "sqlite_errorcode") else 0) & 0xFF, "it failed")
