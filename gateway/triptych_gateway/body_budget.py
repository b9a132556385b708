"""How much memory the bodies of live requests may take: a burst of pictures waits at the door, the process is not killed."""

from __future__ import annotations

import asyncio
from collections import deque

from triptych_common.errors import QueueFullError

_RETRY_AFTER_S = 1.0
#: Bodies that take no more than this do not wait while there is a reserve, which is kept for them.
_SMALL_BYTES = 256 << 10
_WITH_RESERVE = 1.125


class BodyBudget:
    """Counts bytes, and lets bodies in one after the other. For the event loop alone.

    A body is let in before it is read, and whole: nobody holds a part while waiting for the rest. Meanwhile it waits in the socket
    buffers of its client.

    Args:
        max_bytes: of all live requests together.
        max_wait_s: how long a body waits for room; then its request is refused.
    """

    def __init__(self, max_bytes: int, max_wait_s: float) -> None:
        self.max_bytes = max_bytes
        self._max_wait_s = max_wait_s
        self.used_bytes = 0
        #: Who waits for room, in order: bytes, and what is done when they are free.
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    async def take(self, num_bytes: int) -> BodyHold:
        """Hold so many bytes, or all that there are where it is more. Raises QueueFullError when there was no room in time."""
        num_bytes = min(num_bytes, self.max_bytes)
        if num_bytes <= _SMALL_BYTES and self.used_bytes + num_bytes <= self.max_bytes * _WITH_RESERVE:
            self.used_bytes += num_bytes  # a text does not wait behind pictures
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
            await asyncio.wait_for(asyncio.shield(turn), self._max_wait_s)
        except BaseException as error:
            if turn.done():  # it was given, and nobody takes it
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
        """Free bytes, and let those in for whom there is room now."""
        self.used_bytes -= num_bytes
        while self._waiting and self.used_bytes + self._waiting[0][0] <= self.max_bytes:
            wanted, turn = self._waiting.popleft()
            self.used_bytes += wanted
            turn.set_result(None)


class BodyHold:
    """What one request holds; whoever has it releases it."""

    def __init__(self, budget: BodyBudget, num_bytes: int) -> None:
        self._budget = budget
        self._num_bytes = num_bytes

    def shrink(self, num_bytes: int) -> None:
        """Hold no more than so many bytes from now on."""
        freed = self._num_bytes - num_bytes
        if freed > 0:
            self._num_bytes = num_bytes
            self._budget.give_back(freed)

    def release(self) -> None:
        """Give everything back. May be called twice."""
        self.shrink(0)
