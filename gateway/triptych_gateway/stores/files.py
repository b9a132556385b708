"""Files of clients: their contents in a directory, and what is known of them in an SQLite file there."""

from __future__ import annotations

import secrets
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from triptych.errors import InvalidRequestError
from triptych_common.host.fair_share import FairShare

from triptych_gateway.stores.database import Database, transaction
from triptych_gateway.stores.disk import Arrival, Disk
from triptych_gateway.stores.store import Clock

FILES_SCHEMA = """
CREATE TABLE IF NOT EXISTS files (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    filename TEXT NOT NULL,
    purpose TEXT NOT NULL,
    num_bytes INTEGER NOT NULL,
    created_s INTEGER NOT NULL,
    expires_s INTEGER
);
CREATE INDEX IF NOT EXISTS files_by_tenant ON files (tenant, number, num_bytes);
CREATE INDEX IF NOT EXISTS files_by_expiry ON files (expires_s);
"""
_COLUMNS = "id, tenant, filename, purpose, num_bytes, created_s, expires_s"
#: What the smallest file counts, in bytes: it takes a block of the disk, and one of its places for files.
_LEAST_BYTES = 4096
#: Of a batch that has not ended. Its input cannot be deleted.
LIVE = "('validating', 'in_progress', 'finalizing', 'cancelling')"
_IN_USE = f"SELECT id FROM batches WHERE input_file_id = ? AND status IN {LIVE}"  # noqa: S608 - constants


@dataclass(frozen=True)
class StoredFile:
    """What is known of a file."""

    id: str
    #: Only this tenant can see it.
    tenant: str
    filename: str
    purpose: str
    num_bytes: int
    #: In seconds since 1970.
    created_s: int
    expires_s: int | None


def new_id(prefix: str) -> str:
    """An id that nobody can guess."""
    return f"{prefix}{secrets.token_hex(12)}"


class FileStore:
    """The files of all tenants. A file that is missing or expired, and one of another tenant, look the same: None.

    Args:
        max_file_bytes: size of the largest file.
        max_bytes: size of all files and parts of uploads. Tenants have fair shares of it.
        num_tenants: how many tenants there can be.

    Raises:
        ServiceUnavailableError: each method, if the directory or its database cannot be used.
    """

    def __init__(
        self, database: Database, disk: Disk, max_file_bytes: int, max_bytes: int, num_tenants: Callable[[], int], clock: Clock
    ) -> None:
        self.max_file_bytes = max_file_bytes
        self._database, self._disk, self._clock = database, disk, clock
        self._max_bytes, self._num_tenants = max_bytes, num_tenants
        #: What arrives now, by tenant.
        self._arriving = Counter[str]()

    @asynccontextmanager
    async def arriving(self, tenant: str, field: str) -> AsyncIterator[Arrival]:
        """A place for bytes that a tenant sends.

        Args:
            field: what the client calls them.

        Raises:
            InvalidRequestError: the tenant has no room for them.
        """
        room = await self._database.run(lambda database: self._room(database, tenant))
        counted = 0

        def check(num_bytes: int) -> None:
            nonlocal counted
            self._arriving[tenant] += num_bytes - counted
            counted = num_bytes
            if self._arriving[tenant] > room:
                raise self._no_room(field, room, num_bytes)

        try:
            async with self._disk.arriving(check) as arrival:
                yield arrival
        finally:
            self._arriving[tenant] -= counted
            if not self._arriving[tenant]:
                del self._arriving[tenant]

    async def add(self, file: StoredFile, arrival: Arrival) -> None:
        """Keep a file. Raises InvalidRequestError if others have taken its room since it began to arrive."""

        def work(database: sqlite3.Connection) -> None:
            with transaction(database):
                self.check_room(database, file.tenant, file.num_bytes, "file")
                insert_file(database, file)
                arrival.keep(self._disk.content(file.id))

        await self._database.run(work)

    def check_room(self, database: sqlite3.Connection, tenant: str, num_bytes: int, field: str) -> None:
        """Raise InvalidRequestError if a tenant has no room for what has arrived, within the transaction that keeps it."""
        if num_bytes > (room := self._room(database, tenant)):
            raise self._no_room(field, room, num_bytes)

    async def get(self, tenant: str, file_id: str) -> StoredFile | None:
        """The file."""
        return await self._database.run(lambda database: self._get(database, tenant, file_id))

    async def page(
        self, tenant: str, purpose: str | None, after: str | None, limit: int, *, oldest_first: bool
    ) -> Sequence[StoredFile] | None:
        """Up to `limit` files and one more, which tells that there are further ones; None if there is no file `after`."""

        def work(database: sqlite3.Connection) -> list[StoredFile] | None:
            start = 0 if oldest_first else 1 << 62
            if after is not None:
                # A file that has expired meanwhile still has its place.
                row = database.execute("SELECT number FROM files WHERE id = ? AND tenant = ?", (after, tenant)).fetchone()
                if row is None:
                    return None
                start = row[0]
            order = ("> ?", "ASC") if oldest_first else ("< ?", "DESC")
            rows = database.execute(
                f"SELECT {_COLUMNS} FROM files WHERE tenant = ? AND number {order[0]} AND (? IS NULL OR purpose = ?) "  # noqa: S608
                f"AND (expires_s IS NULL OR expires_s > ?) ORDER BY number {order[1]} LIMIT ?",
                (tenant, start, purpose, purpose, self._clock(), limit + 1),
            )
            return [StoredFile(*row) for row in rows]

        return await self._database.run(work)

    async def delete(self, tenant: str, file_id: str) -> bool:
        """Delete the file. Returns whether it was there. Raises InvalidRequestError if a batch that has not ended reads it."""

        def work(database: sqlite3.Connection) -> bool:
            with transaction(database):
                if self._get(database, tenant, file_id) is None:
                    return False
                if (batch := database.execute(_IN_USE, (file_id,)).fetchone()) is not None:
                    message = f"file_id: this is the input of {batch[0]}, which has not ended; cancel that batch first"
                    raise InvalidRequestError(message, field="file_id")
                database.execute("DELETE FROM files WHERE id = ?", (file_id,))
            self._disk.remove([file_id])
            return True

        return await self._database.run(work)

    def content(self, file: StoredFile) -> Path:
        """Where the content of a file is."""
        return self._disk.content(file.id)

    async def sweep(self) -> None:
        """Remove the files that have expired."""

        def work(database: sqlite3.Connection) -> None:
            with transaction(database):
                rows = database.execute("SELECT id FROM files WHERE expires_s <= ?", (self._clock(),)).fetchall()
                expired = [row[0] for row in rows if database.execute(_IN_USE, row).fetchone() is None]
                database.executemany("DELETE FROM files WHERE id = ?", [(one,) for one in expired])
            self._disk.remove(expired)

        await self._database.run(work)

    def _get(self, database: sqlite3.Connection, tenant: str, file_id: str) -> StoredFile | None:
        row = database.execute(
            f"SELECT {_COLUMNS} FROM files WHERE id = ? AND tenant = ? AND (expires_s IS NULL OR expires_s > ?)",  # noqa: S608
            (file_id, tenant, self._clock()),
        ).fetchone()
        return None if row is None else StoredFile(*row)

    def _no_room(self, field: str, room: int, num_bytes: int) -> InvalidRequestError:
        message = f"{field}: your files have no room for it: {room} bytes are left for you of {self._max_bytes} of all"
        return InvalidRequestError(f"{message} (files_max_bytes); delete some", field=field, limit=room, value=num_bytes)

    def _room(self, database: sqlite3.Connection, tenant: str) -> int:
        """Bytes that a tenant may still add: the rule is that of `FairShare`."""
        shares = FairShare(self._max_bytes, self._num_tenants())
        both = "SELECT tenant, num_bytes FROM files UNION ALL SELECT tenant, num_bytes FROM parts"
        sums = f"SELECT tenant, SUM(MAX(num_bytes, {_LEAST_BYTES})) FROM ({both}) GROUP BY tenant"  # noqa: S608
        for owner, num_bytes in database.execute(sums):
            shares.add(owner, num_bytes)
        used, share = shares.used_by(tenant), shares.share(tenant)
        wanted = shares.free if not used else max(shares.free - share, share - used)
        return max(0, min(shares.free, wanted))


def insert_file(database: sqlite3.Connection, file: StoredFile) -> None:
    """Note a file, within a transaction."""
    row = (file.id, file.tenant, file.filename, file.purpose, file.num_bytes, file.created_s, file.expires_s)
    database.execute(f"INSERT INTO files ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)", row)  # noqa: S608
