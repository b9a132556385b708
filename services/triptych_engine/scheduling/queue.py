"""The waiting queue: by priority, then arrival; and, beside it, by priority, then length."""

from __future__ import annotations

import heapq

from triptych_engine.scheduling.request import Request

_Entry = tuple[tuple[int, ...], int, Request]  # key, number of the push, request
#: Stale entries are kept up to this many plus as many as there are live ones.
_MAX_STALE = 64


class RequestQueue:
    """Two heaps of the same waiting requests; entries of those that were removed are skipped when they surface."""

    def __init__(self) -> None:
        self._by_arrival: list[_Entry] = []
        self._by_length: list[_Entry] = []
        self._waiting: dict[str, tuple[int, Request]] = {}  # request_id -> number of its push, and itself
        self._num_pushes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._waiting

    def push(self, request: Request) -> None:
        self._num_pushes += 1
        self._waiting[request.request_id] = (self._num_pushes, request)
        heapq.heappush(self._by_arrival, (request.queue_key, self._num_pushes, request))
        heapq.heappush(self._by_length, (request.shortness_key, self._num_pushes, request))

    def first(self) -> Request | None:
        """The request that is first in line; None when none waits."""
        return self._top(self._by_arrival)

    def shortest(self) -> Request | None:
        """The request with the fewest tokens among those of the first one's priority; None when none waits."""
        return self._top(self._by_length)

    def remove(self, request_id: str) -> None:
        """Take a request out, wherever it stands. Raises KeyError when it does not wait."""
        del self._waiting[request_id]
        for heap in (self._by_arrival, self._by_length):
            # A stale entry of a long request would surface only when no shorter one waits, and keep its request alive until then.
            if len(heap) > 2 * len(self._waiting) + _MAX_STALE:
                heap[:] = [entry for entry in heap if self._is_live(entry)]
                heapq.heapify(heap)

    def _is_live(self, entry: _Entry) -> bool:
        _, number, request = entry
        return self._waiting.get(request.request_id, (0, None))[0] == number

    def _top(self, heap: list[_Entry]) -> Request | None:
        while heap:
            if self._is_live(heap[0]):
                return heap[0][2]
            heapq.heappop(heap)
        return None
