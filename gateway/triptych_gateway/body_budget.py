"""The memory budget for bodies of live requests: in a burst of large bodies, requests wait instead of exhausting the memory."""

from __future__ import annotations

import asyncio
from collections import deque

from triptych.errors import QueueFullError

_RETRY_AFTER_S = 1.0
#: Reservations up to this size may also use the reserve, which larger ones cannot use.
_SMALL_BYTES = 256 << 10
_WITH_RESERVE = 1.125


class BodyBudget:
    """Counts the bytes that bodies reserve, and admits waiting bodies in order. Not thread-safe: used only on the event loop.

    A body reserves all its bytes at once, before it is read. So no body holds a part of its memory while it waits for the rest. A
    waiting body stays in the socket buffers and at the client.

    Args:
        max_bytes: limit for all live requests together.
        max_wait_s: longest wait of a body; after it the request is refused.
    """

    def __init__(self, max_bytes: int, max_wait_s: float) -> None:
        self.max_bytes = max_bytes
        self._max_wait_s = max_wait_s
        self.used_bytes = 0
        #: Waiting reservations in order: number of bytes, and a future that is done when they are reserved.
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    async def take(self, num_bytes: int) -> BodyHold:
        """Reserve `num_bytes`, at most `max_bytes`. Raises QueueFullError if they do not become free in time."""
        num_bytes = min(num_bytes, self.max_bytes)
        if num_bytes <= _SMALL_BYTES and self.used_bytes + num_bytes <= self.max_bytes * _WITH_RESERVE:
            self.used_bytes += num_bytes  # a small body does not wait behind large ones
        elif self._waiting or self.used_bytes + num_bytes > self.max_bytes:
            await self._turn(num_bytes)
        else:
            self.used_bytes += num_bytes
        return BodyHold(self, num_bytes)

    async def _turn(self, num_bytes: int) -> None:
        turn = asyncio.get_running_loop().create_future()
        entry = num_bytes, turn
        self._waiting.append(entry)
        try:
            async with asyncio.timeout(self._max_wait_s):
                await asyncio.shield(turn)
        except BaseException as error:
            if turn.done():  # the bytes were already reserved, but the caller has gone
                self.give_back(num_bytes)
            else:
                self._waiting.remove(entry)
                self.give_back(0)
            if isinstance(error, TimeoutError):
                raise QueueFullError(
                    f"the bodies of live requests take all of {self.max_bytes} bytes (max_live_body_bytes)",
                    limit=self.max_bytes,
                    retry_after_s=_RETRY_AFTER_S,
                ) from None
            raise

    def give_back(self, num_bytes: int) -> None:
        """Free bytes, and admit the waiting bodies that fit now."""
        self.used_bytes -= num_bytes
        while self._waiting and self.used_bytes + self._waiting[0][0] <= self.max_bytes:
            wanted, turn = self._waiting.popleft()
            self.used_bytes += wanted
            turn.set_result(None)


class BodyHold:
    """The bytes that one request has reserved. Its owner must release them."""

    def __init__(self, budget: BodyBudget, num_bytes: int) -> None:
        self._budget = budget
        self._num_bytes = num_bytes

    def shrink(self, num_bytes: int) -> None:
        """Keep at most `num_bytes`, and free the rest."""
        freed = self._num_bytes - num_bytes
        if freed > 0:
            self._num_bytes = num_bytes
            self._budget.give_back(freed)

    def release(self) -> None:
        """Free all bytes. May be called twice."""
        self.shrink(0)
