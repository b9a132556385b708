"""Responses in Valkey or Redis, which several gateways share."""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from dataclasses import asdict
from typing import Any, TypeVar, cast

from redis.asyncio import BlockingConnectionPool, Redis
from redis.exceptions import ReadOnlyError, RedisError
from triptych.errors import ServiceUnavailableError

from triptych_gateway.stores.store import MAX_CHAIN, ResponseStore, StoredResponse

log = logging.getLogger(__name__)
T = TypeVar("T")
_PREFIX = "triptych:response:"
_TIMEOUT_S = 5.0
#: Further calls wait for a connection as long as for an answer. The usual pool would refuse them at once.
_MAX_CONNECTIONS = 64
#: Writes the fields of a live response; its time to live goes on. Two gateways cannot both end a response.
_REPLACE = """
if redis.call('HGET', KEYS[1], 'tenant') ~= ARGV[1] then return 0 end
if redis.call('HGET', KEYS[1], 'live_until_s') == '0' then return 0 end
redis.call('HSET', KEYS[1], 'response', ARGV[2], 'input_items', ARGV[3], 'events', ARGV[4], 'live_until_s', ARGV[5])
return 1
"""
#: A response and those that it continues. The server is not asked once for each: a long conversation has hundreds. Nothing is read
#: of another tenant's response, so that the time of the answer does not tell that it is there.
_WALK = """
local found, id, left = {}, ARGV[2], tonumber(ARGV[3])
while id and id ~= '' and #found < tonumber(ARGV[4]) and left >= 0 do
    local key = ARGV[5] .. id
    if redis.call('HGET', key, 'tenant') ~= ARGV[1] then break end
    local fields = redis.call('HMGET', key, 'previous_id', 'response', 'input_items', 'events', 'live_until_s')
    found[#found + 1] = {id, unpack(fields)}
    left = left - #fields[2] - #fields[3]
    id = fields[1]
end
return found
"""
_DELETE = """
if redis.call('HGET', KEYS[1], 'tenant') ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
"""


class ValkeyStore(ResponseStore):
    """A store on a server. How much it keeps, and what it drops first, is the server's own setting (`maxmemory`).

    Args:
        url: redis://[user:password@]host:port/db, rediss:// or unix://.
        ttl_s: how long a response is kept after it was put.
    """

    def __init__(self, url: str, ttl_s: float) -> None:
        pool = BlockingConnectionPool.from_url(
            url, max_connections=_MAX_CONNECTIONS, timeout=_TIMEOUT_S, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S
        )
        self._redis = Redis.from_pool(pool)
        self._ttl_ms = max(1, int(ttl_s * 1000))

    async def put(self, record: StoredResponse) -> None:
        fields = asdict(record) | {"previous_id": record.previous_id or "", "live_until_s": _seconds(record)}
        key = _PREFIX + fields.pop("id")
        async with self._redis.pipeline(transaction=True) as pipeline:
            pipeline.hset(key, mapping=fields)
            pipeline.pexpire(key, self._ttl_ms)
            await _answered(pipeline.execute(), self._redis)

    async def replace(self, record: StoredResponse) -> bool:
        fields = (record.response, record.input_items, record.events, _seconds(record))
        return bool(await self._eval(_REPLACE, record.id, record.tenant, *fields))

    async def walk(self, tenant: str, response_id: str, max_bytes: int) -> list[StoredResponse]:
        found = await self._eval(_WALK, response_id, tenant, response_id, str(max_bytes), str(MAX_CHAIN), _PREFIX)
        return [_record(tenant, fields) for fields in found]

    async def delete(self, tenant: str, response_id: str) -> bool:
        return bool(await self._eval(_DELETE, response_id, tenant))

    async def close(self) -> None:
        await self._redis.aclose()

    async def _eval(self, script: str, response_id: str, *arguments: str | bytes) -> Any:
        answer = self._redis.eval(script, 1, _PREFIX + response_id, *cast("tuple[str, ...]", arguments))
        return await _answered(cast("Awaitable[Any]", answer), self._redis)


def _record(tenant: str, fields: list[bytes]) -> StoredResponse:
    response_id, previous_id, response, input_items, events, live_until_s = fields
    previous = previous_id.decode() or None
    return StoredResponse(response_id.decode(), tenant, previous, response, input_items, events, float(live_until_s))


def _seconds(record: StoredResponse) -> str:
    return repr(record.live_until_s) if record.is_live else "0"


async def _answered(answer: Awaitable[T], redis: Redis) -> T:
    try:
        return await answer
    except (RedisError, OSError, TimeoutError) as error:
        if isinstance(error, ReadOnlyError):
            # The server became a replica, in a fail-over. It keeps its connections; new ones may reach its successor.
            await redis.connection_pool.disconnect(inuse_connections=False)
        log.warning("the store of responses failed: %s", error)
        raise ServiceUnavailableError("the store of responses is away; try again") from error
