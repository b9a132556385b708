"""What a token bucket is, the interface of a store of buckets, and the store in memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

_MINUTE_S = 60.0
Kind = Literal["requests", "tokens"]
Clock = Callable[[], float]


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


class RateStore(Protocol):
    """Keeps the buckets of all keys."""

    async def take(self, key_id: str, draws: Sequence[Draw]) -> Taken:
        """Take all draws, or none if one of them is not possible."""
        ...

    def settle(self, key_id: str, draw: Draw) -> None:
        """Take the cost in any case, or give it back. Does not wait for a server."""
        ...

    async def close(self) -> None:
        """Finish what was begun, and release connections."""
        ...


class MemoryRates:
    """Buckets in the memory of this process. A bucket is made when a key first needs it, so there are at most two per key.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        #: key, kind -> what was left, and when
        self._buckets: dict[tuple[str, Kind], tuple[float, float]] = {}

    async def take(self, key_id: str, draws: Sequence[Draw]) -> Taken:
        before = [Level(draw, self._left(key_id, draw)) for draw in draws]
        if any(level.is_short for level in before):
            return Taken(False, before)
        return Taken(True, [Level(level.draw, self._put(key_id, level.draw, level.left)) for level in before])

    def settle(self, key_id: str, draw: Draw) -> None:
        self._put(key_id, draw, self._left(key_id, draw))

    async def close(self) -> None:
        self._buckets.clear()

    def _left(self, key_id: str, draw: Draw) -> float:
        left, at_s = self._buckets.get((key_id, draw.kind), (float(draw.per_minute), self._clock()))
        # The limit may have changed since.
        return min(float(draw.per_minute), left + (self._clock() - at_s) * draw.per_minute / _MINUTE_S)

    def _put(self, key_id: str, draw: Draw, left: float) -> float:
        left = min(float(draw.per_minute), left - draw.cost)
        self._buckets[key_id, draw.kind] = left, self._clock()
        return left
