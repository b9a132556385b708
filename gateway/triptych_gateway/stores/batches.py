"""Batches: what clients asked for, and how far it is."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson
from triptych.errors import InvalidRequestError

from triptych_gateway.stores.database import Database, transaction
from triptych_gateway.stores.disk import Arrival, Disk
from triptych_gateway.stores.files import LIVE, StoredFile, insert_file
from triptych_gateway.stores.store import Clock

BATCHES_SCHEMA = """
CREATE TABLE IF NOT EXISTS batches (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    key_id TEXT NOT NULL,
    input_file_id TEXT NOT NULL,
    output_ttl_s INTEGER NOT NULL,
    status TEXT NOT NULL,
    created_s INTEGER NOT NULL,
    models BLOB NOT NULL,
    resource BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS batches_by_tenant ON batches (tenant, number);
CREATE INDEX IF NOT EXISTS batches_by_status ON batches (status, number);
CREATE INDEX IF NOT EXISTS batches_by_input ON batches (input_file_id, status);
"""
_COLUMNS = "id, tenant, key_id, input_file_id, output_ttl_s, created_s, models, resource"
#: The record of a batch that has ended is kept for this time after it was made, in seconds: as long as its files by default.
BATCH_TTL_S = 30 * 86400
LIVE_STATUSES = frozenset(("validating", "in_progress", "finalizing", "cancelling"))


@dataclass(frozen=True)
class StoredBatch:
    """What is known of a batch."""

    id: str
    #: Only this tenant can see it.
    tenant: str
    #: The key that made it, whose models and rates are those of its requests. Empty without keys.
    key_id: str
    input_file_id: str
    #: How long its files of output are kept.
    output_ttl_s: int
    created_s: int
    #: OpenAI's object.
    resource: dict[str, Any]
    #: The models that its lines name; empty until they were checked.
    models: Sequence[str] = ()

    @property
    def status(self) -> str:
        """How far it is."""
        return str(self.resource["status"])

    @property
    def is_live(self) -> bool:
        """Whether it has not ended."""
        return self.status in LIVE_STATUSES


#: Changes the object of a batch. Returns None if nothing is to change.
Change = Callable[[dict[str, Any]], dict[str, Any] | None]


class BatchStore:
    """The batches of all tenants. One that is missing, and one of another tenant, look the same: None.

    Raises:
        ServiceUnavailableError: each method, if the directory or its database cannot be used.
    """

    def __init__(self, database: Database, disk: Disk, clock: Clock) -> None:
        self._database, self._disk, self._clock = database, disk, clock

    async def add(self, batch: StoredBatch, max_live: int) -> int | None:
        """Keep a new batch. Returns None; or how many of the tenant have not ended, if there are already so many.

        Raises:
            InvalidRequestError: its input is no longer there.
        """

        def work(database: sqlite3.Connection) -> int | None:
            with transaction(database):
                count = f"SELECT COUNT(*) FROM batches WHERE tenant = ? AND status IN {LIVE}"  # noqa: S608
                num_live = int(database.execute(count, (batch.tenant,)).fetchone()[0])
                if num_live >= max_live:
                    return num_live
                if not database.execute("SELECT 1 FROM files WHERE id = ?", (batch.input_file_id,)).fetchone():
                    raise InvalidRequestError("input_file_id: this file was deleted meanwhile", field="input_file_id")
                fields = (batch.id, batch.tenant, batch.key_id, batch.input_file_id, batch.output_ttl_s, batch.created_s)
                row = (*fields, orjson.dumps(batch.models), orjson.dumps(batch.resource), batch.status)
                database.execute(f"INSERT INTO batches ({_COLUMNS}, status) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)  # noqa: S608
                return None

        return await self._database.run(work)

    async def get(self, tenant: str, batch_id: str) -> StoredBatch | None:
        """The batch."""
        found = await self._database.run(lambda database: _get(database, batch_id))
        return found if found is not None and found.tenant == tenant else None

    async def page(self, tenant: str, after: str | None, limit: int) -> Sequence[StoredBatch] | None:
        """Up to `limit` batches, newest first, and one more, which tells of further ones; None if there is no batch `after`."""

        def work(database: sqlite3.Connection) -> list[StoredBatch] | None:
            start = 1 << 62
            if after is not None:
                row = database.execute("SELECT number FROM batches WHERE id = ? AND tenant = ?", (after, tenant)).fetchone()
                if row is None:
                    return None
                start = row[0]
            rows = database.execute(
                f"SELECT {_COLUMNS} FROM batches WHERE tenant = ? AND number < ? ORDER BY number DESC LIMIT ?",  # noqa: S608
                (tenant, start, limit + 1),
            )
            return [_batch(row) for row in rows]

        return await self._database.run(work)

    async def live(self) -> Sequence[StoredBatch]:
        """Those that have not ended, of all tenants, oldest first."""

        def work(database: sqlite3.Connection) -> list[StoredBatch]:
            rows = database.execute(f"SELECT {_COLUMNS} FROM batches WHERE status IN {LIVE} ORDER BY number")  # noqa: S608
            return [_batch(row) for row in rows]

        return await self._database.run(work)

    async def update(
        self,
        batch_id: str,
        change: Change,
        *,
        models: Sequence[str] | None = None,
        files: Sequence[tuple[StoredFile, Arrival]] = (),
    ) -> StoredBatch | None:
        """Change a batch that has not ended, and keep files with it: all of that, or nothing. Returns the batch as it is then.

        Args:
            change: nothing is done if it returns None.
            models: those of its lines, once they are known.
        """

        def work(database: sqlite3.Connection) -> StoredBatch | None:
            with transaction(database):
                batch = _get(database, batch_id)
                changed = change({**batch.resource}) if batch is not None and batch.is_live else None
                if batch is None or changed is None:
                    return batch
                for file, arrival in files:
                    insert_file(database, file)
                    arrival.keep(self._disk.content(file.id))
                batch = replace(batch, resource=changed, models=batch.models if models is None else models)
                row = (batch.status, orjson.dumps(batch.models), orjson.dumps(changed), batch_id)
                database.execute("UPDATE batches SET status = ?, models = ?, resource = ? WHERE id = ?", row)
                return batch

        return await self._database.run(work)

    def journal(self, batch_id: str) -> Path:
        """Where the answers of a batch are kept until it ends. Whoever has it open runs the batch."""
        return self._disk.journal(batch_id)

    async def sweep(self) -> None:
        """Forget the batches that ended long ago."""

        def work(database: sqlite3.Connection) -> None:
            with database:
                old = f"DELETE FROM batches WHERE created_s <= ? AND status NOT IN {LIVE}"  # noqa: S608
                database.execute(old, (self._clock() - BATCH_TTL_S,))

        await self._database.run(work)


def _get(database: sqlite3.Connection, batch_id: str) -> StoredBatch | None:
    row = database.execute(f"SELECT {_COLUMNS} FROM batches WHERE id = ?", (batch_id,)).fetchone()  # noqa: S608
    return None if row is None else _batch(row)


def _batch(row: tuple[Any, ...]) -> StoredBatch:
    batch_id, tenant, key_id, input_file_id, output_ttl_s, created_s, models, resource = row
    known = orjson.loads(resource), orjson.loads(models)
    return StoredBatch(batch_id, tenant, key_id, input_file_id, output_ttl_s, created_s, *known)
