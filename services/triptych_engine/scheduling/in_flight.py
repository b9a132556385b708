"""Steps that the runner has and that are not booked yet.

The next step can be scheduled while one is in flight: what that computes counts as computed, and the token that it samples has its
place, although nobody knows it yet. Blocks that such a step writes to are not given away, whatever becomes of their request.
"""

from __future__ import annotations

from collections.abc import Iterable

from triptych_engine.scheduling.kv_cache import KVCacheManager
from triptych_engine.scheduling.output import SchedulerOutput
from triptych_engine.scheduling.request import Request, RequestStatus


class StepsInFlight:
    """Keeps the requests' counts of tokens in flight. Owned by the scheduler."""

    def __init__(self, kv_cache: KVCacheManager) -> None:
        self._kv_cache = kv_cache
        self._steps: list[SchedulerOutput] = []

    def __len__(self) -> int:
        return len(self._steps)

    def take_off(self, step: SchedulerOutput) -> None:
        """The runner is about to get this step."""
        if step.parts:
            self._steps.append(step)
        for part in step.parts:
            part.request.num_in_flight_tokens += part.num_tokens
            part.request.num_unknown_tokens += part.samples

    def land(self, step: SchedulerOutput) -> None:
        """The step has ended, well or not. Who has ended meanwhile gives its blocks back with the last of its steps."""
        if step not in self._steps:
            return
        self._steps.remove(step)
        for part in step.parts:
            request = part.request
            request.num_in_flight_tokens -= part.num_tokens
            request.num_unknown_tokens -= part.samples
            if request.status is RequestStatus.FINISHED:
                self.release(request)

    def release(self, request: Request) -> None:
        """Take the blocks of a request that runs no more, now or when its last step has landed."""
        if not request.num_in_flight_tokens:
            self._kv_cache.release(request)

    @property
    def requests(self) -> set[Request]:
        """Those that have tokens in some step, be they alive or not."""
        return {part.request for step in self._steps for part in step.parts}

    def check_integrity(self, live: Iterable[Request]) -> None:
        """Raise AssertionError unless the requests' counts are those of the steps. For tests."""
        counts = {request: [0, 0] for request in (*live, *self.requests)}
        for step in self._steps:
            for part in step.parts:
                counts[part.request][0] += part.num_tokens
                counts[part.request][1] += part.samples
        for request, count in counts.items():
            if count != [request.num_in_flight_tokens, request.num_unknown_tokens]:
                raise AssertionError(f"request {request.request_id} is not in flight as the steps say")
