"""How many bytes of media files live calls may hold together: a burst of uploads is refused, not the process killed."""

from __future__ import annotations

import asyncio
from collections import deque

from triptych_common.rpc.errors import InvalidRequestError, QueueFullError

_RETRY_AFTER_S = 1.0


class MediaBudget:
    """Counts bytes. For the event loop alone.

    Args:
        max_bytes: of all calls together.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.used_bytes = 0
        #: Who waits for room, in order: bytes, and what is done when they are free.
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def hold(self) -> MediaHold:
        """The share of one call, of nothing so far."""
        return MediaHold(self)

    async def until_free(self, num_bytes: int, timeout_s: float) -> bool:
        """Wait until so many bytes are free, after those who wait already; True when the caller may take them, at once."""
        if not self._waiting and self.used_bytes + num_bytes <= self.max_bytes:
            return True
        turn = asyncio.get_running_loop().create_future()
        entry = num_bytes, turn
        self._waiting.append(entry)
        try:
            await asyncio.wait_for(turn, timeout_s)
        except TimeoutError:
            return False
        finally:
            if entry in self._waiting:
                self._waiting.remove(entry)
                self.wake()
        return self.used_bytes + num_bytes <= self.max_bytes

    def wake(self) -> None:
        """Let those go on for whom there is room now."""
        free = self.max_bytes - self.used_bytes
        while self._waiting and self._waiting[0][0] <= free:
            num_bytes, turn = self._waiting.popleft()
            free -= num_bytes
            if not turn.done():
                turn.set_result(None)


class MediaHold:
    """What one call holds of the budget; whoever made it releases it."""

    def __init__(self, budget: MediaBudget) -> None:
        self._budget = budget
        self._num_bytes = 0

    def take(self, num_bytes: int, field: str) -> None:
        """Hold more bytes.

        Args:
            field: whose bytes they are, for errors.

        Raises:
            InvalidRequestError: the call alone wants more than there is for all.
            QueueFullError: other calls hold the rest.
        """
        limit, wanted = self._budget.max_bytes, self._num_bytes + num_bytes
        if wanted > limit:
            message = f"{field}: the media of one request may have at most {limit} bytes together (max_live_media_bytes)"
            raise InvalidRequestError(message, field=field, limit=limit, value=wanted)
        if self._budget.used_bytes + num_bytes > limit:
            message = f"{field}: the media of live requests take {self._budget.used_bytes} of {limit} bytes (max_live_media_bytes)"
            raise QueueFullError(message, field=field, limit=limit, value=wanted, retry_after_s=_RETRY_AFTER_S)
        self._num_bytes = wanted
        self._budget.used_bytes += num_bytes

    async def take_when_free(self, num_bytes: int, field: str, timeout_s: float) -> None:
        """The same, after waiting for room. Raises as `take` does, QueueFullError after the time."""
        if num_bytes <= self._budget.max_bytes:
            await self._budget.until_free(num_bytes, timeout_s)
        self.take(num_bytes, field)

    def release(self) -> None:
        """Give everything back. May be called twice."""
        self._budget.used_bytes -= self._num_bytes
        self._num_bytes = 0
        self._budget.wake()
