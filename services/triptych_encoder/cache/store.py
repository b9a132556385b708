"""The second cache tier: embeddings in Valkey or Redis, shared by encoders of the same weights. A failure never fails a request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from redis.asyncio import Redis
from redis.exceptions import ReadOnlyError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from triptych_encoder.cache.item import EncodedItem
from triptych_encoder.cache.wire import from_stored, to_stored

log = logging.getLogger(__name__)
_PREFIX = b"triptych:embedding:"
#: A slow store must not delay a request longer than encoding would take.
_TIMEOUT_S = 2.0
#: How long the store is not used after a timeout. Otherwise every item would wait for it, more than once.
_PAUSE_S = 15.0
_WARN_EVERY_S = 30.0


class SharedStore:
    """Keeps items by key until their time to live is over. Each key contains the embedding fingerprint.

    Args:
        url: redis://[user:password@]host:port/db, rediss:// or unix://.
        ttl_s: how long a value is kept after it was written.
        max_value_bytes: larger items are not stored.
    """

    def __init__(self, url: str, ttl_s: float, max_value_bytes: int) -> None:
        self._redis = Redis.from_url(url, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S)
        self._ttl_ms = int(ttl_s * 1000)
        self._max_value_bytes = max_value_bytes
        self._last_warning_s = -_WARN_EVERY_S
        self._paused_until_s = 0.0
        self.num_failures = 0

    async def get(self, key: bytes) -> EncodedItem | None:
        """The item. None if the store does not have it, if it is damaged, or if the store is unavailable."""
        if self._is_paused:
            return None
        try:
            value = await self._redis.get(_PREFIX + key)
        except (RedisError, OSError, TimeoutError) as error:
            await self._failed("read", error)
            return None
        if value is None:
            return None
        item = await asyncio.to_thread(from_stored, value)
        if item is None:
            await self._failed("read", ValueError("a value is damaged or of another version"))
        return item

    async def put(self, key: bytes, item: EncodedItem) -> None:
        """Write an item. A failure is counted, not raised."""
        if item.num_bytes > self._max_value_bytes or self._is_paused:
            return
        value = await asyncio.to_thread(to_stored, item)
        try:
            await self._redis.set(_PREFIX + key, value, px=self._ttl_ms)
        except (RedisError, OSError, TimeoutError) as error:
            await self._failed("write", error)

    async def has(self, keys: Sequence[bytes]) -> list[bool]:
        """Whether the store has each key; False for all if the store is unavailable."""
        if not keys or self._is_paused:
            return [False] * len(keys)
        try:
            async with self._redis.pipeline(transaction=False) as pipeline:
                for key in keys:
                    pipeline.exists(_PREFIX + key)
                return [bool(answer) for answer in await pipeline.execute()]
        except (RedisError, OSError, TimeoutError) as error:
            await self._failed("read", error)
            return [False] * len(keys)

    async def evict(self, keys: Sequence[bytes]) -> None:
        """Delete keys. A failure is counted, not raised."""
        try:
            if keys:
                await self._redis.delete(*(_PREFIX + key for key in keys))
        except (RedisError, OSError, TimeoutError) as error:
            await self._failed("write", error)

    async def close(self) -> None:
        await self._redis.aclose()

    @property
    def _is_paused(self) -> bool:
        return asyncio.get_running_loop().time() < self._paused_until_s

    async def _failed(self, what: str, error: Exception) -> None:
        self.num_failures += 1
        now = asyncio.get_running_loop().time()
        if isinstance(error, (TimeoutError, RedisTimeoutError)):
            self._paused_until_s = now + _PAUSE_S
        if isinstance(error, ReadOnlyError):
            # The server became a replica, in a fail-over. It keeps its connections; new ones may reach its successor.
            await self._redis.connection_pool.disconnect(inuse_connections=False)
        if now - self._last_warning_s >= _WARN_EVERY_S:
            self._last_warning_s = now
            log.warning("the shared store cannot be used to %s (%d failures so far): %s", what, self.num_failures, error)
