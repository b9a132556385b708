"""The memory budget for bodies of live requests: in a burst of large bodies, requests wait instead of exhausting the memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from triptych.errors import QueueFullError
from triptych_common.host.fair_share import FairShare

#: Memory to read and decode a body, as a multiple of its length: its bytes, the decoded files, and the overhead of the allocator.
#: A body whose files contain escapes takes more for a moment.
MEMORY_FACTOR = 2.5
_RETRY_AFTER_S = 1.0
#: Least time in which the body that others wait for must arrive, in seconds.
_LEAST_READ_S = 10.0
#: Bodies that need up to this much may also use the reserve, so that a text does not wait behind pictures.
_SMALL_BYTES = 256 << 10
#: The reserve, as a part of the budget.
_RESERVE_PART = 8


class BodyBudget:
    """Counts the bytes that bodies take. Not thread-safe: used only on the event loop.

    A body takes memory as its bytes arrive: what a client announces and does not send takes none. The budget has three parts:

    * Most of it is in fair shares of tenants.
    * A reserve is for small bodies, in fair shares too.
    * The completion area has room for the largest body. A body that finds no more memory in its share enters a line, in which
      tenants take turns. The first of the line is read to its end with memory of this area. So bodies that have a part of their
      memory never wait for each other without end.

    Args:
        max_bytes: limit for all live requests together.
        max_wait_s: longest wait of a body; after it the request is refused.
        max_body_bytes: memory that the largest body takes.
        shares: makes fair shares of a capacity; see `AccessControl.shares`.
    """

    def __init__(self, max_bytes: int, max_wait_s: float, max_body_bytes: int, shares: Callable[[int], FairShare]) -> None:
        self.max_bytes, self.max_wait_s = max_bytes, max_wait_s
        reserve = max_bytes // _RESERVE_PART
        # A budget smaller than a body is enough for it: no other large body is then read meanwhile.
        self.completion_bytes = min(max_body_bytes, max_bytes - reserve)
        self.shared, self.reserve = shares(max_bytes - self.completion_bytes - reserve), shares(reserve)
        #: The right to use the completion area.
        self.line = shares(1)
        #: The hold that has it.
        self.first: BodyHold | None = None
        self.num_completion_bytes = 0
        self.num_waiting = 0

    @property
    def used_bytes(self) -> int:
        return self.shared.used + self.reserve.used + self.num_completion_bytes

    def hold(self, tenant: str, num_bytes: int) -> BodyHold:
        """The memory of one body, which has nothing yet.

        Args:
            num_bytes: the most that it will take.
        """
        return BodyHold(self, tenant, is_small=num_bytes <= _SMALL_BYTES)

    async def taken(self, tenant: str, num_bytes: int) -> BodyHold:
        """The memory of a body that comes at once. Raises QueueFullError if it does not become free in time."""
        hold = self.hold(tenant, num_bytes)
        try:
            await hold.grow(num_bytes)
        except BaseException:
            hold.release()
            raise
        return hold


class BodyHold:
    """The memory of one body. Its owner must release it, also if `grow` fails."""

    def __init__(self, budget: BodyBudget, tenant: str, *, is_small: bool) -> None:
        self._budget, self._tenant = budget, tenant
        self._pools = (budget.shared, budget.reserve) if is_small else (budget.shared,)
        self._num_bytes = dict.fromkeys(self._pools, 0)
        self._num_completion_bytes = 0
        #: Time of the event loop at which the body must have arrived, because others wait; None while none is set.
        self.ends_s: float | None = None

    async def grow(self, num_bytes: int) -> None:
        """Take more memory, and wait for it if necessary. Raises QueueFullError if it does not become free in time."""
        if not num_bytes:
            return
        if self._budget.first is self:
            self._take_completion_bytes(num_bytes)
            return
        for pool in self._pools:
            if pool.take(self._tenant, num_bytes):
                self._num_bytes[pool] += num_bytes
                return
        self._budget.num_waiting += 1
        try:
            await self._wait(num_bytes)
        finally:
            self._budget.num_waiting -= 1

    async def _wait(self, num_bytes: int) -> None:
        budget, last_pool = self._budget, self._pools[-1]
        if last_pool is budget.reserve and num_bytes <= last_pool.capacity:
            if await last_pool.take_when_free(self._tenant, num_bytes, budget.max_wait_s):
                self._num_bytes[last_pool] += num_bytes
                return
        elif await budget.line.take_when_free(self._tenant, timeout_s=budget.max_wait_s):
            budget.first = self
            self.ends_s = asyncio.get_running_loop().time() + max(budget.max_wait_s, _LEAST_READ_S)
            self._take_completion_bytes(num_bytes)
            return
        message = f"the bodies of live requests take all of {budget.max_bytes} bytes that are free for them (max_live_body_bytes)"
        raise QueueFullError(message, limit=budget.max_bytes, retry_after_s=_RETRY_AFTER_S)

    def _take_completion_bytes(self, num_bytes: int) -> None:
        taken = min(num_bytes, self._budget.completion_bytes - self._num_completion_bytes)
        self._num_completion_bytes += taken
        self._budget.num_completion_bytes += taken

    def complete(self) -> None:
        """The body has arrived: it takes no more. The next one of the line follows, as soon as the completion area is free."""
        self.ends_s = None
        budget, num_bytes = self._budget, self._num_completion_bytes
        if budget.first is self and budget.shared.take(self._tenant, num_bytes):
            self._num_bytes[budget.shared] += num_bytes
            self._free_completion_bytes(num_bytes)

    def shrink(self, num_bytes: int) -> None:
        """Keep at most `num_bytes`, and free the rest. The body takes no more."""
        self.ends_s = None
        freed = self._num_completion_bytes + sum(self._num_bytes.values()) - num_bytes
        if freed > 0 and self._budget.first is self:
            freed -= self._free_completion_bytes(freed)
        for pool in self._pools:
            given = min(max(0, freed), self._num_bytes[pool])
            if given:
                self._num_bytes[pool] -= given
                pool.give_back(self._tenant, given)
                freed -= given
        # What became free may be enough for the body in the completion area.
        first = self._budget.first
        if first is not None and first.ends_s is None:
            first.complete()

    def release(self) -> None:
        """Free everything. May be called twice."""
        self.shrink(0)

    def _free_completion_bytes(self, num_bytes: int) -> int:
        """Free up to `num_bytes` of the completion area. Returns how many. With the last one goes the place in the line."""
        freed = min(num_bytes, self._num_completion_bytes)
        self._num_completion_bytes -= freed
        self._budget.num_completion_bytes -= freed
        if not self._num_completion_bytes:
            self._budget.first = None
            self._budget.line.give_back(self._tenant)
        return freed
