"""Rates of keys as token buckets, in memory or on a server that several gateways share; and the pace of keys that are refused.

The library `limits` was considered. It counts hits in windows: it has no bucket that can be settled when a request used more or
less than was expected, and its exact strategy keeps an entry per hit, so that a request of 100,000 tokens costs 100,000 entries.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ReadOnlyError, RedisError

log = logging.getLogger(__name__)
_MINUTE_S = 60.0
Kind = Literal["requests", "tokens"]
_PREFIX = "triptych:rate:"
#: Longest wait for the server, because a request waits too, in seconds.
_TIMEOUT_S = 0.25
#: Time after a failure in which the server is not asked, in seconds.
_PAUSE_S = 1.0
#: Settlements under way at most. Further ones are dropped while the server is slow, and counted as failures.
_MAX_SETTLING = 1000
#: Calls to the server at the same time. Further ones wait.
_MAX_CALLS = 64
#: Takes all draws or none. The server's clock is the clock of all gateways. An idle bucket is full, so it may be forgotten then.
#: ARGV: whether to take in any case, then kind, limit per minute and cost of each draw. Returns 1 or 0, then what is left of each.
_TAKE = """
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local left, allowed = {}, 1
for first = 2, #ARGV, 3 do
  local limit, cost = tonumber(ARGV[first + 1]), tonumber(ARGV[first + 2])
  local saved = redis.call('HMGET', KEYS[1], ARGV[first], ARGV[first] .. '_s')
  local level = limit
  if saved[1] and saved[2] then
    level = math.min(limit, tonumber(saved[1]) + math.max(0, now - tonumber(saved[2])) * limit / 60)
  end
  if ARGV[1] == '0' and cost > 0 and level < cost then allowed = 0 end
  left[#left + 1] = level
end
local keep_s = 60
if allowed == 1 then
  for index = 1, #left do
    local first = 3 * index - 1
    local limit, cost = tonumber(ARGV[first + 1]), tonumber(ARGV[first + 2])
    left[index] = math.min(limit, left[index] - cost)
    keep_s = math.max(keep_s, (limit - left[index]) * 60 / limit)
    redis.call('HSET', KEYS[1], ARGV[first], string.format('%.6f', left[index]), ARGV[first] .. '_s', string.format('%.6f', now))
  end
  redis.call('EXPIRE', KEYS[1], math.ceil(keep_s) + 60)
end
local answer = {allowed}
for index = 1, #left do answer[index + 1] = string.format('%.6f', left[index]) end
return answer
"""
#: Refusals of a key per second, and how many it may get at once, before its requests wait. A refusal takes a millisecond or two
#: of processor time, which the services of other tenants may need on the same machine.
_PER_S, _BURST = 20, 100
#: No request waits longer, in seconds. Clients' time-outs are usually longer.
MAX_DELAY_S = 5.0
#: Requests of a key that wait at once. Each has a connection, of which there are so many for all tenants together. More of them are
#: not slowed down.
MAX_WAITING = 1024


@dataclass(frozen=True, slots=True)
class Draw:
    """Something to take from a bucket.

    A bucket holds a minute's worth and fills evenly, so that within any t seconds at most `per_minute * (1 + t / 60)` is taken.
    """

    kind: Kind
    per_minute: int
    #: What is taken. Nothing can always be taken, also of a bucket that is below zero. Below zero: it is given back.
    cost: float


@dataclass(frozen=True, slots=True)
class Level:
    """A bucket after a draw, or, if it was refused, as it is."""

    draw: Draw
    #: What is left. Below zero, if requests used more than they had reserved.
    left: float

    @property
    def is_short(self) -> bool:
        """Whether the bucket has too little for a draw that was refused."""
        return 0 < self.draw.cost > self.left

    @property
    def wait_s(self) -> float:
        """Until the draw is possible, if nobody else takes anything."""
        return max(0.0, self.draw.cost - self.left) * _MINUTE_S / self.draw.per_minute

    @property
    def reset_s(self) -> float:
        """Until the bucket is full."""
        return (self.draw.per_minute - self.left) * _MINUTE_S / self.draw.per_minute


@dataclass(frozen=True, slots=True)
class Taken:
    """The outcome of a request for draws: all of them, or none."""

    is_allowed: bool
    levels: Sequence[Level]


class MemoryRates:
    """Buckets in the memory of this process. A bucket is made when a key first needs it, so there are at most two per key.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: key, kind -> what was left, and when
        self._buckets: dict[tuple[str, Kind], tuple[float, float]] = {}

    async def take(self, key_id: str, draws: Sequence[Draw]) -> Taken:
        """Take all draws, or none if one of them is not possible."""
        before = [Level(draw, self._left(key_id, draw)) for draw in draws]
        if any(level.is_short for level in before):
            return Taken(False, before)
        return Taken(True, [Level(level.draw, self._put(key_id, level.draw, level.left)) for level in before])

    def settle(self, key_id: str, draw: Draw) -> None:
        """Take the cost in any case, or give it back. Does not wait for a server."""
        self._put(key_id, draw, self._left(key_id, draw))

    async def close(self) -> None:
        """Finish what was begun, and release connections."""
        self._buckets.clear()

    def _left(self, key_id: str, draw: Draw) -> float:
        left, at_s = self._buckets.get((key_id, draw.kind), (float(draw.per_minute), self._clock()))
        # The limit may have changed since.
        return min(float(draw.per_minute), left + (self._clock() - at_s) * draw.per_minute / _MINUTE_S)

    def _put(self, key_id: str, draw: Draw, left: float) -> float:
        left = min(float(draw.per_minute), left - draw.cost)
        self._buckets[key_id, draw.kind] = left, self._clock()
        return left


class SharedRates(MemoryRates):
    """Buckets on a server. While it is away, those in memory count: each gateway then allows the whole rate.

    Args:
        url: redis://[user:password@]host:port/db, rediss:// or unix://.
        on_failure: called for each time that the server did not answer.
    """

    def __init__(self, url: str, on_failure: Callable[[], None]) -> None:
        super().__init__()
        # Redis' own client would try again for seconds.
        self._redis = Redis.from_url(url, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S, retry=Retry(NoBackoff(), 0))
        self._script = self._redis.register_script(_TAKE)
        self._on_failure = on_failure
        self._is_away = False
        self._asked_again_s = 0.0
        self._settling: set[asyncio.Task[None]] = set()
        #: Fewer than the client's connections: a call beyond them fails as if the server were away.
        self._calls = asyncio.Semaphore(_MAX_CALLS)

    async def take(self, key_id: str, draws: Sequence[Draw]) -> Taken:
        return await self._run(key_id, draws, False) or await super().take(key_id, draws)

    def settle(self, key_id: str, draw: Draw) -> None:
        if len(self._settling) >= _MAX_SETTLING:
            self._on_failure()
            return
        task = asyncio.create_task(self._settle(key_id, draw), name=f"settle {key_id}")
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    async def close(self) -> None:
        await asyncio.gather(*self._settling)
        await self._redis.aclose()

    async def _settle(self, key_id: str, draw: Draw) -> None:
        if await self._run(key_id, [draw], True) is None:
            super().settle(key_id, draw)

    async def _run(self, key_id: str, draws: Sequence[Draw], in_any_case: bool) -> Taken | None:
        """The server's answer; None if it is away."""
        if self._is_away and time.monotonic() < self._asked_again_s:
            return None
        arguments = ["1" if in_any_case else "0"]
        for draw in draws:
            arguments += [draw.kind, str(draw.per_minute), repr(float(draw.cost))]
        try:
            # The timeouts of the client are for each of several steps, such as connecting.
            async with self._calls, asyncio.timeout(2 * _TIMEOUT_S):
                answer = await self._script(keys=[_PREFIX + key_id], args=arguments)
        except (RedisError, OSError, TimeoutError) as error:
            self._on_failure()
            if isinstance(error, ReadOnlyError):
                # The server became a replica, in a fail-over. It keeps its connections; new ones may reach its successor.
                await self._redis.connection_pool.disconnect(inuse_connections=False)
            if not self._is_away:
                # The error's text may have the URL, which may have a password.
                log.warning("the store of rates is away (%s); until it is back, this gateway counts alone", type(error).__name__)
            self._is_away, self._asked_again_s = True, time.monotonic() + _PAUSE_S
            return None
        if self._is_away:
            log.info("the store of rates is back")
            self._is_away = False
        allowed, *left = answer
        return Taken(bool(allowed), [Level(draw, float(one)) for draw, one in zip(draws, left, strict=True)])


class RefusalPace:
    """Slows down a key whose user ignores refusals. A client that waits as `Retry-After` says hardly gets so many."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: When the refusals of a key would have ended, if it had got `_PER_S` of them a second.
        self._busy_until_s: dict[str, float] = {}
        self._waiting = Counter[str]()

    def note(self, key_id: str) -> None:
        """A request of the key was refused."""
        now_s = self._clock()
        until_s = max(self._busy_until_s.get(key_id, 0.0), now_s) + 1 / _PER_S
        self._busy_until_s[key_id] = min(until_s, now_s + _BURST / _PER_S + MAX_DELAY_S)

    async def wait(self, key_id: str) -> None:
        """Wait as long as the next request of the key should."""
        delay_s = self.delay_s(key_id)
        if not delay_s or self._waiting[key_id] >= MAX_WAITING:
            return
        self._waiting[key_id] += 1
        try:
            await asyncio.sleep(delay_s)
        finally:
            self._waiting[key_id] -= 1

    def delay_s(self, key_id: str) -> float:
        """How long the next request of the key should wait, in seconds. Random, up to a third less or more: requests that came
        together do not go on together."""
        delay_s = max(0.0, self._busy_until_s.get(key_id, 0.0) - self._clock() - _BURST / _PER_S)
        return min(delay_s * random.uniform(2 / 3, 4 / 3), MAX_DELAY_S * random.uniform(2 / 3, 1)) if delay_s else 0.0
