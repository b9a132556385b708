"""Responses in an SQLite file. They survive a restart of the gateway."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import astuple
from functools import partial

from triptych_gateway.stores.database import Database
from triptych_gateway.stores.store import Clock, ResponseStore, StoredResponse, walked, wall_clock

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
#: Room is made when this many bytes were written, because counting all bytes reads the whole index.
_CHECK_EVERY_BYTES = 8 << 20


class SqliteStore(ResponseStore):
    """A store in a file.

    Args:
        path: the file; it is created with its folder. `:memory:` keeps all in memory.
        ttl_s: how long a response is kept after it was put.
        max_bytes: size of all responses. When it is full, the tenants that keep most lose their oldest.

    Raises:
        StartupError: the file cannot be opened.
    """

    def __init__(self, path: str, ttl_s: float, max_bytes: int, clock: Clock = wall_clock) -> None:
        self._ttl_s, self._max_bytes, self._clock = ttl_s, max_bytes, clock
        self._num_unchecked_bytes = _CHECK_EVERY_BYTES
        self._database = Database(path, _SCHEMA, "the store of responses", "--response-store")

    async def put(self, record: StoredResponse) -> None:
        await self._database.run(lambda database: self._put(database, record))

    async def replace(self, record: StoredResponse) -> bool:
        return await self._database.run(lambda database: self._replace(database, record))

    async def walk(self, tenant: str, response_id: str, max_bytes: int) -> list[StoredResponse]:
        return await self._database.run(lambda database: walked(partial(self._get, database, tenant), response_id, max_bytes))

    async def delete(self, tenant: str, response_id: str) -> bool:
        return await self._database.run(lambda database: self._delete(database, tenant, response_id))

    async def close(self) -> None:
        await self._database.close()

    def _put(self, database: sqlite3.Connection, record: StoredResponse) -> None:
        row = (*astuple(record), self._clock() + self._ttl_s, record.num_bytes)
        with database:
            database.execute("INSERT OR REPLACE INTO responses VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
            self._make_room(database, record.num_bytes)

    def _replace(self, database: sqlite3.Connection, record: StoredResponse) -> bool:
        with database:
            done = database.execute(
                "UPDATE responses SET response = ?, input_items = ?, events = ?, live_until_s = ?, num_bytes = ? "
                "WHERE id = ? AND tenant = ? AND live_until_s > 0",
                (*astuple(record)[3:], record.num_bytes, record.id, record.tenant),
            )
            self._make_room(database, record.num_bytes)
        return done.rowcount == 1

    def _get(self, database: sqlite3.Connection, tenant: str, response_id: str) -> StoredResponse | None:
        row = database.execute(
            "SELECT id, tenant, previous_id, response, input_items, events, live_until_s FROM responses "
            "WHERE id = ? AND tenant = ? AND expires_s > ?",
            (response_id, tenant, self._clock()),
        ).fetchone()
        return None if row is None else StoredResponse(*row)

    def _delete(self, database: sqlite3.Connection, tenant: str, response_id: str) -> bool:
        with database:
            done = database.execute(
                "DELETE FROM responses WHERE id = ? AND tenant = ? AND expires_s > ?", (response_id, tenant, self._clock())
            )
        return done.rowcount == 1

    def _make_room(self, database: sqlite3.Connection, num_new_bytes: int) -> None:
        """Drop what has expired, and beyond the limit the oldest responses of the tenants that keep most."""
        self._num_unchecked_bytes += num_new_bytes
        if self._num_unchecked_bytes < min(_CHECK_EVERY_BYTES, self._max_bytes // 8):
            return
        self._num_unchecked_bytes = 0
        database.execute("DELETE FROM responses WHERE expires_s <= ?", (self._clock(),))
        sizes = dict(database.execute("SELECT tenant, SUM(num_bytes) FROM responses GROUP BY tenant"))
        part = equal_part(sizes.values(), self._max_bytes)
        for tenant in (tenant for tenant, size in sizes.items() if size > part):
            database.execute(
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
