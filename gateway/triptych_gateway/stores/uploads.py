"""Uploads: files that come in parts."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from triptych.errors import InvalidRequestError

from triptych_gateway.stores.database import Database, transaction
from triptych_gateway.stores.disk import Arrival, Disk
from triptych_gateway.stores.files import FileStore, StoredFile, insert_file
from triptych_gateway.stores.store import Clock

UPLOADS_SCHEMA = """
CREATE TABLE IF NOT EXISTS uploads (
    id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    filename TEXT NOT NULL,
    purpose TEXT NOT NULL,
    num_bytes INTEGER NOT NULL,
    created_s INTEGER NOT NULL,
    expires_s INTEGER NOT NULL,
    file_ttl_s INTEGER,
    status TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS parts (
    id TEXT PRIMARY KEY,
    upload_id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    num_bytes INTEGER NOT NULL,
    created_s INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS parts_by_upload ON parts (upload_id, num_bytes);
"""
#: An upload must be complete after this time, in seconds. Its record is kept for as long again.
UPLOAD_TTL_S = 3600
#: Parts of one upload.
MAX_PARTS = 10_000
UploadStatus = Literal["pending", "completed", "cancelled", "expired"]
_COLUMNS = "id, tenant, filename, purpose, num_bytes, created_s, expires_s, file_ttl_s, status"


@dataclass(frozen=True)
class StoredUpload:
    """What is known of an upload."""

    id: str
    tenant: str
    filename: str
    purpose: str
    #: Of the whole file, as the client announced it.
    num_bytes: int
    created_s: int
    expires_s: int
    #: How long the file is kept; None for ever.
    file_ttl_s: int | None
    status: UploadStatus


class UploadStore:
    """The uploads of all tenants. One that is missing, and one of another tenant, look the same: None.

    Args:
        files: knows the room for parts.

    Raises:
        ServiceUnavailableError: each method, if the directory or its database cannot be used.
    """

    def __init__(self, database: Database, disk: Disk, files: FileStore, clock: Clock) -> None:
        self._database, self._disk, self._files, self._clock = database, disk, files, clock

    async def add(self, upload: StoredUpload) -> None:
        """Keep a new upload."""
        row = (*(getattr(upload, name) for name in _COLUMNS.split(", ")),)

        def work(database: sqlite3.Connection) -> None:
            with database:
                database.execute(f"INSERT INTO uploads ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)  # noqa: S608

        await self._database.run(work)

    async def get(self, tenant: str, upload_id: str) -> StoredUpload | None:
        """The upload."""
        return await self._database.run(lambda database: self._get(database, tenant, upload_id))

    async def add_part(self, upload: StoredUpload, part_id: str, arrival: Arrival) -> None:
        """Keep a part. Raises InvalidRequestError if the upload is no longer pending, has too many bytes or parts, or no room."""

        def work(database: sqlite3.Connection) -> None:
            with transaction(database):
                self._pending(database, upload)
                sizes = "SELECT COUNT(*), COALESCE(SUM(num_bytes), 0) FROM parts WHERE upload_id = ?"
                num_parts, num_bytes = database.execute(sizes, (upload.id,)).fetchone()
                if num_bytes + arrival.num_bytes > upload.num_bytes:
                    message = (
                        f"data: the parts have {num_bytes + arrival.num_bytes} bytes; the upload was made for {upload.num_bytes}"
                    )
                    raise InvalidRequestError(message, field="data", limit=upload.num_bytes, value=num_bytes + arrival.num_bytes)
                if num_parts >= MAX_PARTS:
                    raise InvalidRequestError(f"data: the upload has {MAX_PARTS} parts already", field="data", limit=MAX_PARTS)
                self._files.check_room(database, upload.tenant, arrival.num_bytes, "data")
                row = (part_id, upload.id, upload.tenant, arrival.num_bytes, int(self._clock()))
                database.execute("INSERT INTO parts VALUES (?, ?, ?, ?, ?)", row)
                arrival.keep(self._disk.content(part_id))

        await self._database.run(work)

    async def complete(self, upload: StoredUpload, part_ids: Sequence[str], md5: str | None, file: StoredFile) -> None:
        """Join parts to a file, in this order.

        Raises:
            InvalidRequestError: a part is not there or named twice, the parts are not as large or not the bytes that were
                announced, or the upload is no longer pending.
        """

        def sizes(database: sqlite3.Connection) -> dict[str, int]:
            self._pending(database, upload)
            return dict(database.execute("SELECT id, num_bytes FROM parts WHERE upload_id = ?", (upload.id,)))

        known = await self._database.run(sizes)
        left = known.copy()
        wrong = next((one for one in part_ids if left.pop(one, None) is None), None)
        if wrong is not None:
            reason = "is named twice" if wrong in known else "is not a part of this upload"
            raise InvalidRequestError(f"part_ids: {wrong[:64]!r} {reason}", field="part_ids", value=wrong[:64])
        if (num_bytes := sum(known[one] for one in part_ids)) != upload.num_bytes:
            message = f"part_ids: these parts have {num_bytes} bytes; the upload was made for {upload.num_bytes}"
            raise InvalidRequestError(message, field="part_ids", limit=upload.num_bytes, value=num_bytes)
        async with self._disk.arriving() as arrival:
            try:
                found = await asyncio.to_thread(arrival.join, [self._disk.content(one) for one in part_ids])
            except FileNotFoundError:
                # It was completed or cancelled meanwhile, which the client is told.
                await self._database.run(sizes)
                raise
            if md5 is not None and md5.lower() != found:
                raise InvalidRequestError(f"md5: the content has {found}", field="md5", value=md5)

            def work(database: sqlite3.Connection) -> None:
                with transaction(database):
                    part_ids = self._end(database, upload, "completed")
                    insert_file(database, file)
                    arrival.keep(self._disk.content(file.id))
                self._disk.remove(part_ids)

            await self._database.run(work)

    async def cancel(self, upload: StoredUpload) -> None:
        """Cancel a pending upload, and remove its parts. Raises InvalidRequestError if it is no longer pending."""

        def work(database: sqlite3.Connection) -> None:
            with transaction(database):
                part_ids = self._end(database, upload, "cancelled")
            self._disk.remove(part_ids)

        await self._database.run(work)

    async def sweep(self) -> None:
        """Remove the parts of uploads that have expired, and later the uploads."""

        def work(database: sqlite3.Connection) -> None:
            now = self._clock()
            removed: list[str] = []
            with transaction(database):
                rows = database.execute(
                    f"SELECT {_COLUMNS} FROM uploads WHERE status = 'pending' AND expires_s <= ?",  # noqa: S608
                    (now,),
                ).fetchall()
                for row in rows:
                    removed += self._end(database, StoredUpload(*row), "expired")
                database.execute("DELETE FROM uploads WHERE expires_s <= ?", (now - UPLOAD_TTL_S,))
            self._disk.remove(removed)

        await self._database.run(work)

    def _get(self, database: sqlite3.Connection, tenant: str, upload_id: str) -> StoredUpload | None:
        row = database.execute(
            f"SELECT {_COLUMNS} FROM uploads WHERE id = ? AND tenant = ?",  # noqa: S608
            (upload_id, tenant),
        ).fetchone()
        return None if row is None else StoredUpload(*row)

    def _pending(self, database: sqlite3.Connection, upload: StoredUpload) -> None:
        now = self._get(database, upload.tenant, upload.id)
        status = "gone" if now is None else "expired" if now.expires_s <= self._clock() else now.status
        if status != "pending":
            raise InvalidRequestError(f"upload_id: this upload is {status}", field="upload_id", value=status)

    def _end(self, database: sqlite3.Connection, upload: StoredUpload, status: UploadStatus) -> list[str]:
        """End a pending upload, within a transaction. Returns the parts whose contents are to be removed."""
        if status != "expired":
            self._pending(database, upload)
        database.execute("UPDATE uploads SET status = ? WHERE id = ?", (status, upload.id))
        ids = [row[0] for row in database.execute("SELECT id FROM parts WHERE upload_id = ?", (upload.id,))]
        database.execute("DELETE FROM parts WHERE upload_id = ?", (upload.id,))
        return ids
