"""The budget for bytes of media files in memory. A burst of uploads is refused, so that the process is not killed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from triptych_common.errors import InvalidRequestError, QueueFullError

_RETRY_AFTER_S = 1.0


class MediaBudget:
    """Counts bytes. For the event loop alone.

    Args:
        max_bytes: of all calls together.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        #: Bytes that live calls need.
        self.used_bytes = 0
        #: Bytes that are kept in case they are needed once more. They are dropped when other calls need the room.
        self.spare_bytes = 0
        self._spare: dict[MediaHold, None] = {}  # holds that can be dropped, oldest first
        #: The bytes that callers wait for, in order, each with an event that is set when the caller should look for room.
        self._waiting: deque[tuple[int, asyncio.Event]] = deque()

    def hold(self) -> MediaHold:
        """The share of one call, of nothing so far."""
        return MediaHold(self)

    def make_room(self, num_bytes: int) -> None:
        """Drop spare files, oldest first, until so many more bytes fit."""
        while self._spare and self.used_bytes + self.spare_bytes + num_bytes > self.max_bytes:
            next(iter(self._spare)).drop()

    def add_spare(self, hold: MediaHold, num_bytes: int) -> None:
        """Count a call's bytes as spare."""
        self._spare[hold] = None
        self.used_bytes -= num_bytes
        self.spare_bytes += num_bytes

    def remove_spare(self, hold: MediaHold, num_bytes: int) -> None:
        """Count a call's spare bytes as used again."""
        del self._spare[hold]
        self.used_bytes += num_bytes
        self.spare_bytes -= num_bytes

    async def until_free(self, num_bytes: int, timeout_s: float) -> bool:
        """Wait until so many bytes are free, behind callers that wait already. True when the caller may take them at once."""
        entry = num_bytes, asyncio.Event()
        self._waiting.append(entry)
        try:
            async with asyncio.timeout(timeout_s):
                # Whoever is woken looks again: a call may have taken the room meanwhile.
                while self._waiting[0] is not entry or self.used_bytes + num_bytes > self.max_bytes:
                    entry[1].clear()
                    await entry[1].wait()
        except TimeoutError:
            return False
        finally:
            self._waiting.remove(entry)
            self.wake()
        return True

    def wake(self) -> None:
        """Let the caller that waits longest see whether there is room now."""
        if self._waiting:
            self._waiting[0][1].set()


class MediaHold:
    """What one call holds of the budget. Whoever made it releases it."""

    def __init__(self, budget: MediaBudget) -> None:
        self._budget = budget
        self._num_bytes = 0
        #: What drops the files; None while the call needs them.
        self._on_drop: Callable[[], None] | None = None

    def take(self, num_bytes: int, field: str) -> None:
        """Hold more bytes.

        Args:
            field: whose bytes they are, for errors.

        Raises:
            InvalidRequestError: the call alone needs more than the whole budget.
            QueueFullError: other calls hold the rest.
        """
        limit, wanted = self._budget.max_bytes, self._num_bytes + num_bytes
        if wanted > limit:
            message = f"{field}: the media of one request may have at most {limit} bytes together (max_live_media_bytes)"
            raise InvalidRequestError(message, field=field, limit=limit, value=wanted)
        if self._budget.used_bytes + num_bytes > limit:
            message = f"{field}: the media of live requests take {self._budget.used_bytes} of {limit} bytes (max_live_media_bytes)"
            raise QueueFullError(message, field=field, limit=limit, value=wanted, retry_after_s=_RETRY_AFTER_S)
        self._budget.make_room(num_bytes)
        self._num_bytes = wanted
        self._budget.used_bytes += num_bytes

    async def take_when_free(self, num_bytes: int, field: str, timeout_s: float) -> None:
        """Wait for room, then `take`. Raises as `take` does, QueueFullError after the time."""
        if num_bytes <= self._budget.max_bytes:
            await self._budget.until_free(num_bytes, timeout_s)
        self.take(num_bytes, field)

    def spare(self, on_drop: Callable[[], None]) -> None:
        """The call can do without the files: keep them only while nobody else needs the room.

        Args:
            on_drop: called when the room is needed. It drops the files.
        """
        if self._num_bytes and self._on_drop is None:
            self._on_drop = on_drop
            self._budget.add_spare(self, self._num_bytes)
            self._budget.wake()

    def need(self) -> None:
        """The call needs the files again, as far as they are still there."""
        if self._on_drop is not None:
            self._on_drop = None
            self._budget.remove_spare(self, self._num_bytes)

    def drop(self) -> None:
        """Drop the spare files, and give their room back."""
        if self._on_drop is not None:
            on_drop = self._on_drop
            self.release()
            on_drop()

    def release(self) -> None:
        """Give all room back. May be called twice."""
        self.need()
        self._budget.used_bytes -= self._num_bytes
        self._num_bytes = 0
        self._budget.wake()
