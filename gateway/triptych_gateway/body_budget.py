"""The memory budget for bodies of live requests: in a burst of large bodies, requests wait instead of exhausting the memory."""

from __future__ import annotations

import asyncio

from triptych.errors import QueueFullError
from triptych_common.host.fair_share import FairShare

#: Memory to read and decode a body, as a multiple of its length: its bytes, the decoded files, and the overhead of the allocator.
#: A body whose files contain escapes takes more for a moment.
MEMORY_FACTOR = 2.5
_RETRY_AFTER_S = 1.0
#: Bodies that need up to this much may also use the reserve, so that a text does not wait behind pictures.
_SMALL_BYTES = 256 << 10
#: The reserve, as a part of the budget.
_RESERVE_PART = 8


class BodyBudget:
    """Counts the bytes that bodies take, in fair shares of tenants. Not thread-safe: used only on the event loop.

    A body takes memory as its bytes arrive: what a client announces and does not send takes none. Where memory is short, the large
    bodies of a tenant are completed one after the other: only one of them may use the last part of what the tenant may have, and
    that part is large enough for any body. So bodies that have a part of their memory do not wait for each other.

    Args:
        max_bytes: limit for all live requests together.
        max_wait_s: longest wait of a body; after it the request is refused.
        max_body_bytes: memory that the largest body takes.
        max_tenants: how many tenants there can be; None if that is not known.
    """

    def __init__(self, max_bytes: int, max_wait_s: float, max_body_bytes: int, max_tenants: int | None = None) -> None:
        self.max_bytes = max_bytes
        self.max_wait_s = max_wait_s
        self.max_body_bytes = min(max_body_bytes, max_bytes)
        self.num_waiting = 0
        self._all = FairShare(max_bytes, max_tenants)
        self._reserve = FairShare(max_bytes // _RESERVE_PART, max_tenants)
        #: Tenant -> the right to complete a body while memory is short, and how many want it.
        self._lines: dict[str, tuple[asyncio.Lock, int]] = {}

    @property
    def used_bytes(self) -> int:
        return self._all.used + self._reserve.used

    def hold(self, tenant: str, num_bytes: int) -> BodyHold:
        """The memory of one body, which has nothing yet.

        Args:
            num_bytes: the most that it will take.
        """
        is_small = num_bytes <= _SMALL_BYTES
        has_reserve = is_small and not self._all.may_take(tenant, num_bytes) and self._reserve.may_take(tenant, num_bytes)
        return BodyHold(self, self._reserve if has_reserve else self._all, tenant, 0 if is_small else self.max_body_bytes)

    def line(self, tenant: str, change: int) -> asyncio.Lock:
        """The tenant's right to complete a body; note that one more (1) or one less (-1) wants it."""
        lock, wanted = self._lines.get(tenant) or (asyncio.Lock(), 0)
        if wanted + change:
            self._lines[tenant] = lock, wanted + change
        else:
            del self._lines[tenant]
        return lock


class BodyHold:
    """The memory of one body. Its owner must release it.

    Args:
        kept_bytes: what it leaves to the body that is completed.
    """

    def __init__(self, budget: BodyBudget, shares: FairShare, tenant: str, kept_bytes: int) -> None:
        self._budget, self._shares, self._tenant, self._kept_bytes = budget, shares, tenant, kept_bytes
        self._num_bytes = 0
        #: Held while this body is the one that is completed.
        self._line: asyncio.Lock | None = None

    async def grow(self, num_bytes: int) -> None:
        """Take more memory, and wait for it if necessary. Raises QueueFullError if it does not become free in time."""
        budget = self._budget
        # A budget smaller than a body is enough for it: the body is then alone.
        num_bytes = min(num_bytes, budget.max_bytes - self._num_bytes)
        if not num_bytes:
            return
        is_free = self._line is not None or self._shares.may_take(self._tenant, num_bytes + self._kept_bytes)
        if not (is_free and self._shares.take(self._tenant, num_bytes)):
            budget.num_waiting += 1
            try:
                await self._wait(num_bytes)
            finally:
                budget.num_waiting -= 1
        self._num_bytes += num_bytes

    async def _wait(self, num_bytes: int) -> None:
        budget = self._budget
        try:
            async with asyncio.timeout(budget.max_wait_s):
                await self._enter()
                if await self._shares.take_when_free(self._tenant, num_bytes):
                    return
        except TimeoutError:
            raise QueueFullError(
                f"the bodies of live requests take all of {budget.max_bytes} bytes that are free for them (max_live_body_bytes)",
                limit=budget.max_bytes,
                retry_after_s=_RETRY_AFTER_S,
            ) from None

    async def _enter(self) -> None:
        if self._line is not None or not self._kept_bytes:
            return
        line = self._budget.line(self._tenant, 1)
        try:
            await line.acquire()
        except BaseException:
            self._budget.line(self._tenant, -1)
            raise
        self._line = line

    def complete(self) -> None:
        """The body has arrived: it takes no more."""
        if self._line is not None:
            self._line.release()
            self._line = None
            self._budget.line(self._tenant, -1)

    def shrink(self, num_bytes: int) -> None:
        """Keep at most `num_bytes`, and free the rest. The body takes no more."""
        self.complete()
        freed = self._num_bytes - num_bytes
        if freed > 0:
            self._num_bytes = num_bytes
            self._shares.give_back(self._tenant, freed)

    def release(self) -> None:
        """Free everything. May be called twice."""
        self.shrink(0)
