"""Opens the stores that settings name."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

from triptych_gateway.stores.batches import BATCHES_SCHEMA, BatchStore
from triptych_gateway.stores.database import Database
from triptych_gateway.stores.disk import Disk
from triptych_gateway.stores.files import FILES_SCHEMA, LIVE, FileStore
from triptych_gateway.stores.memory import MemoryStore
from triptych_gateway.stores.sqlite import SqliteStore
from triptych_gateway.stores.store import Clock, ResponseStore, wall_clock
from triptych_gateway.stores.uploads import UPLOADS_SCHEMA, UploadStore

#: What the settings may be.
SERVER_FORMS = "redis://HOST:PORT/DB, rediss:// or unix://"
FORMS = f"memory, sqlite:PATH, {SERVER_FORMS}"
_SERVERS = ("redis://", "rediss://", "unix://")


def check_target(target: str) -> str:
    """The target, if it has one of the forms. Raises ValueError."""
    if target == "memory" or target.startswith(_SERVERS) or (target.startswith("sqlite:") and len(target) > len("sqlite:")):
        return target
    raise ValueError(f"must be {FORMS}")


def check_rates_target(target: str) -> str:
    """The target of a store of rates, if it has one of the forms. Raises ValueError."""
    if target == "memory" or target.startswith(_SERVERS):
        return target
    raise ValueError(f"must be memory, {SERVER_FORMS}")


def open_store(target: str, ttl_s: float, max_bytes: int) -> ResponseStore:
    """The store.

    Args:
        target: one of the forms of `check_target`.
        ttl_s: how long a response is kept.
        max_bytes: size of all responses; not for a server, which has its own limit.

    Raises:
        StartupError: a file cannot be opened. A server is not contacted before the first request.
    """
    if target.startswith(_SERVERS):
        # Late: importing its client takes 0.1 s, also of commands that only check flags.
        from triptych_gateway.stores.valkey import ValkeyStore

        return ValkeyStore(target, ttl_s)
    if target.startswith("sqlite:"):
        return SqliteStore(target.removeprefix("sqlite:"), ttl_s, max_bytes)
    return MemoryStore(ttl_s, max_bytes)


class FileStores:
    """What is kept in the directory of files: files, uploads, batches.

    Args:
        directory: it may be shared by gateways of one machine.
        max_file_bytes: size of the largest file.
        max_bytes: size of all files, of which tenants have fair shares.
        num_tenants: how many tenants there can be.

    Raises:
        StartupError: the directory cannot be written.
    """

    def __init__(
        self, directory: Path, max_file_bytes: int, max_bytes: int, num_tenants: Callable[[], int], clock: Clock = wall_clock
    ) -> None:
        self.disk = Disk(directory)
        schema = FILES_SCHEMA + UPLOADS_SCHEMA + BATCHES_SCHEMA
        self._database = Database(str(directory / "files.sqlite"), schema, "the store of files", "--files-dir")
        self.files = FileStore(self._database, self.disk, max_file_bytes, max_bytes, num_tenants, clock)
        self.uploads = UploadStore(self._database, self.disk, self.files, clock)
        self.batches = BatchStore(self._database, self.disk, clock)

    async def sweep(self) -> None:
        """Remove what has expired. Raises ServiceUnavailableError, or OSError."""
        await self.uploads.sweep()
        await self.files.sweep()
        await self.batches.sweep()
        await self._database.run(self._sweep)

    def _sweep(self, database: sqlite3.Connection) -> None:
        contents = {row[0] for row in database.execute("SELECT id FROM files UNION ALL SELECT id FROM parts")}
        batches = {row[0] for row in database.execute(f"SELECT id FROM batches WHERE status IN {LIVE}")}  # noqa: S608
        self.disk.sweep(contents, batches)

    async def close(self) -> None:
        """Close the database."""
        await self._database.close()
