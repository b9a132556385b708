"""The waiting queue: by priority, then arrival."""

from __future__ import annotations

import heapq

from triptych_engine.request import Request


class RequestQueue:
    """A heap of waiting requests; removed ones are skipped when they surface."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, int], Request]] = []
        self._waiting: dict[str, Request] = {}  # request_id -> request

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._waiting

    def push(self, request: Request) -> None:
        self._waiting[request.request_id] = request
        heapq.heappush(self._heap, (request.queue_key, request))

    def peek(self) -> Request | None:
        """The request that runs next; None when none waits."""
        while self._heap:
            request = self._heap[0][1]
            if self._waiting.get(request.request_id) is request:
                return request
            heapq.heappop(self._heap)
        return None

    def pop(self) -> Request:
        """Take the request that `peek` shows. Raises IndexError when none waits."""
        request = self.peek()
        if request is None:
            raise IndexError("pop from an empty request queue")
        heapq.heappop(self._heap)
        del self._waiting[request.request_id]
        return request

    def remove(self, request_id: str) -> None:
        """Take a request out, wherever it stands. Raises KeyError when it does not wait."""
        del self._waiting[request_id]
