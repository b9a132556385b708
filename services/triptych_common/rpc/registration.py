"""The entry of this process in a registry: a key with a lease on a Valkey or Redis server, while the process is ready.

An entry says where a service may be, and nothing more: who finds it connects, and uses only what describes itself as expected.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from triptych.errors import StartupError
from triptych.installation import install_command

log = logging.getLogger(__name__)
#: An entry that is not renewed for this time is gone, in seconds. The server counts it, so no clock of ours matters.
LEASE_S = 3.0
#: Time between two renewals, in seconds.
HEARTBEAT_S = 1.0
_TICK_S, _TIMEOUT_S = 0.25, 2.0
PREFIX = "triptych:service:"
#: Renews an entry, unless another instance has it. Both in one step, so that two instances cannot both hold it.
_RENEW = """
local held = redis.call('GET', KEYS[1])
if held and cjson.decode(held).holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1
"""
#: Removes an entry, unless another instance has it.
_REMOVE = """
local held = redis.call('GET', KEYS[1])
if held and cjson.decode(held).holder == ARGV[1] then redis.call('DEL', KEYS[1]) end
return 1
"""


def registry_client(url: str) -> Any:
    """A client of the registry at this URL. Raises StartupError if its package is missing."""
    try:
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
    except ImportError:
        raise StartupError(f"a registry needs the package redis; run: {install_command('triptych-server', 'discovery')}") from None
    return Redis.from_url(
        url.replace("valkey", "redis", 1),
        socket_timeout=_TIMEOUT_S,
        socket_connect_timeout=_TIMEOUT_S,
        decode_responses=True,
        retry=Retry(NoBackoff(), 0),  # who reads and writes here does so again soon
    )


class Registration:
    """Keeps the entry of this process.

    Args:
        url: of the registry: valkey://, valkeys:// (TLS) or the same with redis.
        role: engine, encoder or frontend.
        instance_id: of this process.
        describe: what others may know of it, with its `address`; None while it is not ready.
    """

    def __init__(self, url: str, role: str, instance_id: str, describe: Callable[[], Mapping[str, object] | None]) -> None:
        self._client = registry_client(url)
        self._key = f"{PREFIX}{role}:{instance_id}"
        self._describe = describe
        self._holder = instance_id + f"-{time.monotonic_ns()}"

    async def run(self) -> None:
        """Renew the entry while the process is ready, until cancelled; then remove it."""
        told: object = None
        renewed_s, failure = 0.0, ""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101
        try:
            # Python 3.11's wait_for, which the client sends with, can lose a cancellation (python/cpython #86296).
            while not task.cancelling():
                try:
                    entry, now_s = self._describe(), time.monotonic()
                    if entry != told or (entry is not None and now_s - renewed_s >= HEARTBEAT_S):
                        await self._tell(entry)
                        told, renewed_s, failure = entry, now_s, ""
                except Exception as error:  # the client's errors are many; the next turn tries again
                    if str(error) != failure:
                        failure = str(error)
                        log.warning("the registry cannot be told of this service: %s", failure)
                    # After a fail-over, the connection may lead to a server that takes no writes any more.
                    await self._client.connection_pool.disconnect()
                await asyncio.sleep(_TICK_S)
        finally:
            try:
                async with asyncio.timeout(_TIMEOUT_S):
                    await self._tell(None)
                    await self._client.aclose()
            except Exception as error:
                log.debug("this service could not be removed from the registry: %s", error)

    async def _tell(self, entry: Mapping[str, object] | None) -> None:
        if entry is None:
            await self._client.eval(_REMOVE, 1, self._key, self._holder)
            return
        value = json.dumps({**entry, "holder": self._holder})
        if not await self._client.eval(_RENEW, 1, self._key, self._holder, value, int(LEASE_S * 1000)):
            raise ValueError(f"another service has the entry {self._key}")
