"""The waiting queue, in two orders: by priority and arrival, and by priority and length."""

from __future__ import annotations

import heapq

from triptych_engine.scheduling.request import Request

_Entry = tuple[tuple[int, ...], int, Request]  # key, number of the push, request
#: A heap may hold this many stale entries plus one for each live entry.
_MAX_STALE = 64


class RequestQueue:
    """Two heaps of the same waiting requests. The entry of a removed request is stale; it is dropped when it reaches the top."""

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
        """The request that is first in the queue; None if the queue is empty."""
        return self._top(self._by_arrival)

    def shortest(self) -> Request | None:
        """Of the requests with the priority of the first one, the one with the fewest tokens left; None if the queue is empty."""
        return self._top(self._by_length)

    def remove(self, request_id: str) -> None:
        """Remove a request from any position. Raises KeyError if it is not in the queue."""
        del self._waiting[request_id]
        for heap in (self._by_arrival, self._by_length):
            # A stale entry of a long request reaches the top only when no shorter one waits. Until then it keeps its request alive.
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
