"""Steps that were launched and are not completed yet.

The next step can be scheduled while one is in flight. For this, the tokens that a step in flight computes count as computed. The
token that it samples already has its position in the sequence, although it is not known yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from triptych_engine.scheduling.request import Request


@dataclass(frozen=True, slots=True)
class ScheduledRequest:
    """What one step does for one request. It holds the request, not its id: another request may have the id when the step ends."""

    request: Request
    num_tokens: int
    #: 0 when the step does not sample for it.
    max_new_tokens: int


class StepsInFlight:
    """Maintains the requests' counts of tokens in flight. Owned by `RequestStates`."""

    def __init__(self) -> None:
        self._steps: dict[int, Sequence[ScheduledRequest]] = {}  # step_id -> what it does

    def __len__(self) -> int:
        return len(self._steps)

    def launched(self, step_id: int, scheduled: Sequence[ScheduledRequest]) -> None:
        """Record a step that the executor is about to get."""
        if scheduled:
            self._steps[step_id] = scheduled
        for one in scheduled:
            request = one.request
            request.num_in_flight_tokens += one.num_tokens
            if one.max_new_tokens:
                request.num_unknown_tokens += 1
                request.awaits_result = one.max_new_tokens > 1

    def completed(self, step_id: int) -> Sequence[ScheduledRequest]:
        """Record that a step has ended, with or without an error. Returns its work; empty if the step is not in flight."""
        scheduled = self._steps.pop(step_id, ())
        for one in scheduled:
            request = one.request
            request.num_in_flight_tokens -= one.num_tokens
            if one.max_new_tokens:
                request.num_unknown_tokens -= 1
                # A step that may return several tokens is the last one in flight for its request. An earlier one may end before it.
                request.awaits_result = request.awaits_result and one.max_new_tokens == 1
        return scheduled

    @property
    def requests(self) -> set[Request]:
        """Requests that have tokens in a step in flight, live or finished."""
        return {one.request for step in self._steps.values() for one in step}

    def check_integrity(self, live: Iterable[Request]) -> None:
        """Raise AssertionError unless the requests' counts are those of the steps. For tests."""
        counts: dict[Request, list[int]] = {request: [0, 0, 0] for request in (*live, *self.requests)}
        for step in self._steps.values():
            for one in step:
                count = counts[one.request]
                count[0] += one.num_tokens
                count[1] += one.max_new_tokens > 0
                count[2] += one.max_new_tokens > 1
        for request, count in counts.items():
            if count != [request.num_in_flight_tokens, request.num_unknown_tokens, int(request.awaits_result)]:
                raise AssertionError(f"request {request.request_id} is not in flight as the steps say")
