"""The waiting queue: by priority, then arrival; and, beside it, by priority, then length."""

from __future__ import annotations

import heapq

from triptych_engine.request import Request


class RequestQueue:
    """Two heaps of the same waiting requests; those that are removed are skipped when they surface."""

    def __init__(self) -> None:
        self._by_arrival: list[tuple[tuple[int, ...], Request]] = []
        self._by_length: list[tuple[tuple[int, ...], Request]] = []
        self._waiting: dict[str, Request] = {}  # request_id -> request

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._waiting

    def push(self, request: Request) -> None:
        self._waiting[request.request_id] = request
        heapq.heappush(self._by_arrival, (request.queue_key, request))
        heapq.heappush(self._by_length, (request.shortness_key, request))

    def first(self) -> Request | None:
        """The request that is first in line; None when none waits."""
        return self._top(self._by_arrival)

    def shortest(self) -> Request | None:
        """The request with the fewest tokens among those of the first one's priority; None when none waits."""
        return self._top(self._by_length)

    def remove(self, request_id: str) -> None:
        """Take a request out, wherever it stands. Raises KeyError when it does not wait."""
        del self._waiting[request_id]

    def _top(self, heap: list[tuple[tuple[int, ...], Request]]) -> Request | None:
        while heap:
            request = heap[0][1]
            if self._waiting.get(request.request_id) is request:
                return request
            heapq.heappop(heap)
        return None
