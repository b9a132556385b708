"""Finds services in a registry: those that keep an entry there (`rpc.registration`).

What the registry says is never waited for. While its server is away, the last known addresses stay; and there never are none.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections import Counter
from typing import Any

from triptych_common.cluster.resolver import LastKnown, Update
from triptych_common.rpc.registration import LEASE_S, PREFIX, registry_client
from triptych_common.targets import parse_address

log = logging.getLogger(__name__)
#: Time between two reads, in seconds.
READ_S = 0.5
#: Ignored entries that are remembered, so that each is logged once.
_MAX_TOLD = 1000
#: Entries that were ignored, by role, since the process started.
ignored_entries: Counter[str] = Counter()


class RegistryResolver:
    """The addresses of the services of one role.

    Args:
        url: of the registry: valkey://, valkeys:// (TLS), or the same with redis.
        role: engine, encoder or frontend.
        fingerprint: only services of this model; empty for any.
    """

    def __init__(self, url: str, role: str, fingerprint: str = "") -> None:
        self._url, self._role, self._fingerprint = url, role, fingerprint
        self._hint = asyncio.Event()
        self._told: set[tuple[str, str]] = set()

    async def watch(self, update: Update) -> None:
        client = registry_client(self._url)
        known = LastKnown(f"the registry of {self._role}s", LEASE_S, update)
        run_id = ""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101
        try:
            while not task.cancelling():  # see Registration.run
                self._hint.clear()
                try:
                    info = await client.info()
                    if info.get("role") != "master":
                        raise ConnectionError("the server is a replica")
                    found = await self._read(client)
                except Exception as error:  # the client's errors are many
                    known.failed(str(error))
                    # After a fail-over, the name may lead to another server.
                    await client.connection_pool.disconnect()
                else:
                    if run_id not in ("", info.get("run_id")):
                        known.restarted()
                    run_id = str(info.get("run_id"))
                    known.found(found)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(READ_S):
                        await self._hint.wait()
        finally:
            await client.aclose()

    def resolve_now(self) -> None:
        self._hint.set()

    async def _read(self, client: Any) -> tuple[str, ...]:
        keys = sorted([key async for key in client.scan_iter(f"{PREFIX}{self._role}:*", count=1000)])
        values = await client.mget(keys) if keys else []
        addresses: dict[str, None] = {}
        for key, value in zip(keys, values, strict=True):
            if value is None:  # it lapsed meanwhile
                continue
            try:
                entry = json.loads(value)
                address = str(entry["address"])
                parse_address(address)
            except (ValueError, KeyError, TypeError) as error:
                self._ignore(key, f"its value is no entry: {error}")
                continue
            if self._fingerprint and entry.get("fingerprint") not in ("", None, self._fingerprint):
                continue  # of another model
            addresses[address] = None  # after a restart there are two for a moment
        return tuple(sorted(addresses))

    def _ignore(self, key: str, why: str) -> None:
        if (key, why) not in self._told:
            self._told = {*self._told, (key, why)} if len(self._told) < _MAX_TOLD else {(key, why)}
            ignored_entries[self._role] += 1
            log.warning("the entry %s of the registry is ignored: %s", key, why)
