"""The memory budget for media files. A burst of uploads is refused instead of exhausting the memory of the process."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from triptych.errors import InvalidRequestError, QueueFullError

_RETRY_AFTER_S = 1.0
#: How long an upload waits for the budget, in seconds. Other calls return their share at their first tokens.
_UPLOAD_WAIT_S = 30.0


class MediaBudget:
    """Counts bytes. Use it on the event loop only.

    Args:
        max_bytes: most bytes of all calls together.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        #: Bytes that live calls need.
        self.used_bytes = 0
        #: Bytes of files that may be needed once more. They are dropped when other calls need the budget.
        self.spare_bytes = 0
        self._spare: dict[MediaHold, None] = {}  # holds that can be dropped, oldest first
        #: The callers that wait for free bytes, in order. Each event is set when its caller should check the budget again.
        self._waiting: deque[tuple[int, asyncio.Event]] = deque()

    def hold(self) -> MediaHold:
        """A new, empty share of the budget for one call."""
        return MediaHold(self)

    async def reserve(self, tenant: str, num_bytes: int) -> MediaHold:
        """Wait for the memory of an upload. The tenants share one budget."""
        hold = self.hold()
        await hold.take_when_free(num_bytes, "data", _UPLOAD_WAIT_S)
        return hold

    def make_room(self, num_bytes: int) -> None:
        """Drop spare files, oldest first, until `num_bytes` more fit."""
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
        """Wait in line until `num_bytes` are free. Returns True if the caller may take them at once, False after the timeout."""
        entry = num_bytes, asyncio.Event()
        self._waiting.append(entry)
        try:
            async with asyncio.timeout(timeout_s):
                # Check again after each wake-up: another call may have taken the bytes meanwhile.
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
        """Wake the first waiting caller, so that it checks the budget."""
        if self._waiting:
            self._waiting[0][1].set()


class MediaHold:
    """One call's share of the budget, or one upload's. The owner must release it."""

    #: Of an upload: nobody waits for just its memory.
    ends_s: float | None = None

    def __init__(self, budget: MediaBudget) -> None:
        self._budget = budget
        self._num_bytes = 0
        #: Drops the files; None while the call needs them.
        self._on_drop: Callable[[], None] | None = None

    def take(self, num_bytes: int, field: str) -> None:
        """Hold more bytes.

        Args:
            field: the item's field, for errors.

        Raises:
            InvalidRequestError: the call alone needs more than the whole budget.
            QueueFullError: other calls use the rest of the budget.
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
        """Wait until the bytes are free, then `take` them. Raises like `take`; QueueFullError after the timeout."""
        if num_bytes <= self._budget.max_bytes:
            await self._budget.until_free(num_bytes, timeout_s)
        self.take(num_bytes, field)

    def spare(self, on_drop: Callable[[], None]) -> None:
        """The call no longer needs the files: keep them only until another call needs the budget.

        Args:
            on_drop: called when another call needs the budget. It must drop the files.
        """
        if self._num_bytes and self._on_drop is None:
            self._on_drop = on_drop
            self._budget.add_spare(self, self._num_bytes)
            self._budget.wake()

    def need(self) -> None:
        """The call needs the files again, if they are still there."""
        if self._on_drop is not None:
            self._on_drop = None
            self._budget.remove_spare(self, self._num_bytes)

    def drop(self) -> None:
        """Drop the spare files, and return their bytes to the budget."""
        if self._on_drop is not None:
            on_drop = self._on_drop
            self.release()
            on_drop()

    def complete(self) -> None:
        """An upload has arrived."""

    def release(self) -> None:
        """Return all bytes to the budget. May be called twice."""
        self.need()
        self._budget.used_bytes -= self._num_bytes
        self._num_bytes = 0
        self._budget.wake()
