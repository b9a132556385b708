"""Fair shares of one finite resource: bytes, connections, runs, places in a queue.

With n active tenants, a share is 1/(n + 1) of the capacity: one for each of them, and one for the next tenant that comes. A tenant
may hold more than its share as long as one whole share stays free.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class FairShare:
    """Counts what each tenant holds, and decides who may take more. Not thread-safe: use it on the event loop only.

    A tenant is active while it holds or waits for something. What is granted is never taken back; a resource whose items can be
    dropped uses `evictee` and `add` in place of `take`. The rules:

    * All tenants together never hold more than the capacity.
    * A tenant gets more than its share only if one share stays free for the others.
    * So a tenant that stays within its share is refused only while others hold more than theirs. If it waits, those get nothing
      more until it has been served.
    * A tenant that holds nothing may take one item of any size that fits. Otherwise an item larger than a share would never be
      taken.

    Args:
        capacity: amount of the resource, in any unit.
        max_tenants: how many tenants there can be; None if that is not known. A single tenant may take everything.
    """

    def __init__(self, capacity: int, max_tenants: int | None = None) -> None:
        self.capacity = capacity
        self.max_tenants = max_tenants
        self.used = 0
        self._used: dict[str, int] = {}  # tenant -> what it holds, at least 1
        #: Tenant -> those who wait for it, in order: amount, and a future that is done when it is granted. No line is empty.
        self._lines: dict[str, deque[tuple[int, asyncio.Future[None]]]] = {}

    @property
    def free(self) -> int:
        """What nobody holds."""
        return self.capacity - self.used

    @property
    def num_waiting(self) -> int:
        """Callers of `take_when_free` that wait."""
        return sum(map(len, self._lines.values()))

    @property
    def waits(self) -> bool:
        """Whether somebody waits."""
        return bool(self._lines)

    def used_by(self, tenant: str) -> int:
        """What the tenant holds."""
        return self._used.get(tenant, 0)

    def share(self, tenant: str) -> int:
        """What the tenant may hold whatever the others do, at least 1."""
        num_tenants = len(self._used.keys() | self._lines.keys() | {tenant}) + 1
        if self.max_tenants is not None:
            num_tenants = min(num_tenants, max(1, self.max_tenants))
        return max(1, self.capacity // num_tenants)

    def may_take(self, tenant: str, amount: int = 1) -> bool:
        """Whether `take` would succeed, apart from those who wait."""
        left, held = self.free - amount, self.used_by(tenant)
        if left < 0:
            return False
        return held == 0 or left >= self.share(tenant) or self._is_within(tenant, amount)

    def take(self, tenant: str, amount: int = 1) -> bool:
        """Take without waiting. Returns whether it was granted: not before those of the same tenant who wait."""
        if tenant in self._lines or not self.may_take(tenant, amount):
            return False
        self.add(tenant, amount)
        return True

    def add(self, tenant: str, amount: int = 1) -> None:
        """Count what the tenant holds more, without asking."""
        if amount:
            self.used += amount
            self._used[tenant] = self.used_by(tenant) + amount

    async def take_when_free(self, tenant: str, amount: int = 1, timeout_s: float | None = None) -> bool:
        """Take, and wait for it if necessary. Returns False after the timeout.

        Those of one tenant wait in order. Of several tenants, the one that holds least is first; of equals, the one that has been
        served longest ago.
        """
        if self.take(tenant, amount):
            return True
        turn = asyncio.get_running_loop().create_future()
        entry = amount, turn
        self._lines.setdefault(tenant, deque()).append(entry)
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(turn)
        except BaseException as error:
            if turn.done():  # it was granted, but the caller has gone
                self.give_back(tenant, amount)
            else:
                self._leave(tenant, entry)
                self._grant()
            if isinstance(error, TimeoutError):
                return False
            raise
        return True

    @asynccontextmanager
    async def held(self, tenant: str, amount: int = 1) -> AsyncIterator[None]:
        """Wait until it can be taken, and hold it while the block runs."""
        await self.take_when_free(tenant, amount)
        try:
            yield
        finally:
            self.give_back(tenant, amount)

    def give_back(self, tenant: str, amount: int = 1) -> None:
        """Return what the tenant held, and grant what is waited for."""
        left = self.used_by(tenant) - amount
        if left < 0:
            raise ValueError(f"{tenant!r} gives back {amount} and holds {self.used_by(tenant)}")
        self.used -= amount
        if left:
            self._used[tenant] = left
        else:
            self._used.pop(tenant, None)
        self._grant()

    def limit_tenants(self, max_tenants: int | None) -> None:
        """Change how many tenants there can be."""
        self.max_tenants = max_tenants
        self._grant()

    def evictee(self, tenant: str, amount: int = 1) -> str | None:
        """Who has to drop an item before the tenant may `add` an amount; None if it fits.

        It is the tenant that holds most, the amount included. So it always holds more than an equal part, which is the capacity
        divided by the active tenants. Of equals it is the tenant that adds. No share stays free.

        Raises:
            ValueError: the amount alone is larger than an equal part.
        """
        part = self.capacity // len(self._used.keys() | {tenant})
        if amount > part:
            raise ValueError(f"{amount} is more than this tenant's part of {part}")
        if self.used + amount <= self.capacity:
            return None
        most = max(self._used, key=self._used.__getitem__)
        return tenant if self.used_by(tenant) + amount >= self._used[most] else most

    def _is_within(self, tenant: str, amount: int) -> bool:
        return self.used_by(tenant) + amount <= self.share(tenant)

    def _grant(self) -> None:
        """Grant what is waited for, as far as it fits."""
        while (tenant := self._next()) is not None:
            entry = amount, turn = self._lines[tenant][0]
            self._leave(tenant, entry)
            if tenant in self._lines:  # behind the others
                self._lines[tenant] = self._lines.pop(tenant)
            self.add(tenant, amount)
            turn.set_result(None)

    def _next(self) -> str | None:
        """The tenant whose turn it is; None if nobody may take."""
        for tenant in sorted(self._lines, key=self.used_by):
            amount = self._lines[tenant][0][0]
            if self.may_take(tenant, amount):
                return tenant
            if not self.used_by(tenant) or self._is_within(tenant, amount):
                return None  # what becomes free is kept for it
        return None

    def _leave(self, tenant: str, entry: tuple[int, asyncio.Future[None]]) -> None:
        line = self._lines[tenant]
        line.remove(entry)
        if not line:
            del self._lines[tenant]


class ServiceShare(FairShare):
    """Fair shares in a service, which knows a tenant only when its request comes.

    Until a named tenant comes, all callers are the anonymous one, as behind a gateway without keys, and may take everything.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity, max_tenants=1)

    def may_take(self, tenant: str, amount: int = 1) -> bool:
        if tenant:
            self.max_tenants = None
        return super().may_take(tenant, amount)
