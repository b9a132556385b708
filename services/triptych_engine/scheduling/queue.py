"""The waiting queue. Tenants take turns in it; each one's requests are in two orders, by arrival and by length.

The order of tenants is that of the Virtual Token Counter (Sheng et al., Fairness in Serving Large Language Models, OSDI 2024).
Every tenant has a counter of the tokens that were computed for it. Of the tenants with waiting requests, the one with the smallest
counter is next. A tenant that had nothing waiting begins at the counters of the others, so it cannot save up time that it did not
use. A better priority goes before all that.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Container
from typing import TypeAlias

from triptych_engine.scheduling.request import Request

_Entry: TypeAlias = tuple[tuple[int, ...], int, Request]  # key, number of the push, request
#: A heap may hold this many stale entries plus one for each live entry.
_MAX_STALE = 64
#: An output token counts as so many prompt tokens. The paper's value.
_OUTPUT_WEIGHT = 2
#: Counters are kept of this many tenants that have no request waiting.
_MAX_COUNTERS = 1024
#: A tenant is alone when no other one has sent a request for this time, in seconds.
_ALONE_AFTER_S = 600.0


class RequestQueue:
    """The requests that wait, and whose turn it is."""

    def __init__(self) -> None:
        self._tenants: dict[str, _TenantQueue] = {}  # those with waiting requests
        self._tenant_of: dict[str, str] = {}  # request_id -> tenant
        self._counters: dict[str, int] = {}
        #: The counter of the tenant whose request left last to be computed.
        self._virtual_time = 0
        self._num_pushes = 0
        self._last_tenant: str | None = None
        self._last_change_s = -_ALONE_AFTER_S

    def __len__(self) -> int:
        return len(self._tenant_of)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._tenant_of

    @property
    def has_several_tenants(self) -> bool:
        """Whether requests of more than one tenant have come lately."""
        return time.monotonic() - self._last_change_s < _ALONE_AFTER_S

    def has_other_than(self, tenant: str) -> bool:
        """Whether another tenant has sent requests lately."""
        return self.has_several_tenants or self._last_tenant not in (None, tenant)

    def num_of(self, tenant: str) -> int:
        """How many of a tenant's requests wait."""
        queue = self._tenants.get(tenant)
        return len(queue.waiting) if queue is not None else 0

    def push(self, request: Request) -> None:
        tenant = request.tenant
        if tenant != self._last_tenant:
            if self._last_tenant is not None:
                self._last_change_s = time.monotonic()
            self._last_tenant = tenant
        queue = self._tenants.get(tenant)
        if queue is None:
            start = min((self._counters[other] for other in self._tenants), default=self._virtual_time)
            self._counters[tenant] = max(self._counters.get(tenant, 0), start)
            self._tenants[tenant] = queue = _TenantQueue()
            self._forget_idle()
        self._num_pushes += 1
        self._tenant_of[request.request_id] = tenant
        queue.push(request, self._num_pushes)

    def first(self, held: Container[str] = ()) -> Request | None:
        """The request whose turn it is; None if there is none.

        Args:
            held: tenants that are passed over.
        """
        queue = self._next(held)
        return queue.first() if queue is not None else None

    def shortest(self, held: Container[str] = ()) -> Request | None:
        """Of the requests of the first one's tenant and priority, the one with the fewest tokens left; None if there is none."""
        queue = self._next(held)
        return queue.shortest() if queue is not None else None

    def take(self, request: Request) -> None:
        """Remove a request that will now be computed. Raises KeyError if it is not in the queue."""
        self._virtual_time = max(self._virtual_time, self._counters[request.tenant])
        self.remove(request.request_id)

    def counter(self, tenant: str) -> int:
        """The tenant's counter. Of two requests with the same priority, the one whose tenant has the smaller counter goes first."""
        return self._counters.get(tenant, self._virtual_time)

    def charge(self, tenant: str, num_prompt_tokens: int, num_output_tokens: int = 0) -> None:
        """Count tokens that are computed for a tenant."""
        self._counters[tenant] = self.counter(tenant) + num_prompt_tokens + _OUTPUT_WEIGHT * num_output_tokens

    def remove(self, request_id: str) -> None:
        """Remove a request from any position. Raises KeyError if it is not in the queue."""
        tenant = self._tenant_of.pop(request_id)
        queue = self._tenants[tenant]
        queue.remove(request_id)
        if not queue.waiting:
            del self._tenants[tenant]

    def _next(self, held: Container[str]) -> _TenantQueue | None:
        best, best_rank = None, (0, 0, 0)
        for tenant, queue in self._tenants.items():
            first = queue.first()
            if first is not None and tenant not in held:
                rank = first.priority, self._counters[tenant], first.arrival
                if best is None or rank < best_rank:
                    best, best_rank = queue, rank
        return best

    def _forget_idle(self) -> None:
        if len(self._counters) > _MAX_COUNTERS + 2 * len(self._tenants):
            # A tenant that is behind the others would begin where they are.
            self._counters = {
                tenant: counter
                for tenant, counter in self._counters.items()
                if tenant in self._tenants or counter > self._virtual_time
            }


class _TenantQueue:
    """Two heaps of one tenant's requests. The entry of a removed request is stale; it is dropped when it reaches the top."""

    def __init__(self) -> None:
        self._by_arrival: list[_Entry] = []
        self._by_length: list[_Entry] = []
        self.waiting: dict[str, int] = {}  # request_id -> number of its push

    def push(self, request: Request, number: int) -> None:
        self.waiting[request.request_id] = number
        heapq.heappush(self._by_arrival, (request.queue_key, number, request))
        heapq.heappush(self._by_length, (request.shortness_key, number, request))

    def first(self) -> Request | None:
        return self._top(self._by_arrival)

    def shortest(self) -> Request | None:
        return self._top(self._by_length)

    def remove(self, request_id: str) -> None:
        del self.waiting[request_id]
        for heap in (self._by_arrival, self._by_length):
            # A stale entry of a long request reaches the top only when no shorter one waits. Until then it keeps its request alive.
            if len(heap) > 2 * len(self.waiting) + _MAX_STALE:
                heap[:] = [entry for entry in heap if self._is_live(entry)]
                heapq.heapify(heap)

    def _is_live(self, entry: _Entry) -> bool:
        _, number, request = entry
        return self.waiting.get(request.request_id) == number

    def _top(self, heap: list[_Entry]) -> Request | None:
        while heap:
            if self._is_live(heap[0]):
                return heap[0][2]
            heapq.heappop(heap)
        return None
