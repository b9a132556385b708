"""The owner of request states: which transitions there are, what they move and give back."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.builders.engine import a_media_request
from triptych_engine.media.cache import EmbeddingCache
from triptych_engine.media.needs import MediaNeeds
from triptych_engine.scheduling.cache.kv_cache import KVCacheManager
from triptych_engine.scheduling.in_flight import ScheduledRequest
from triptych_engine.scheduling.request import FinishReason, Request, RequestStatus
from triptych_engine.scheduling.states import InvalidTransitionError, RequestStates

NEW, WAITING, PARKED, RUNNING, FINISHED = RequestStatus

EVENTS: dict[str, Callable[[RequestStates, Request], None]] = {
    "add": lambda states, request: states.add(request),
    "admit": lambda states, request: states.admit(request, []),
    "park": lambda states, request: states.park(request, 0),
    "unpark": lambda states, request: states.unpark(request),
    "preempt": lambda states, request: states.preempt(request),
    "finish": lambda states, request: states.finish(request, FinishReason.ABORT),
}
#: How to come to each state.
PATHS = {
    NEW: [],
    WAITING: ["add"],
    PARKED: ["add", "park"],
    RUNNING: ["add", "admit"],
    FINISHED: ["add", "admit", "finish"],
}
ALLOWED = {
    (NEW, "add"): WAITING,
    (WAITING, "admit"): RUNNING,
    (WAITING, "park"): PARKED,
    (WAITING, "finish"): FINISHED,
    (PARKED, "unpark"): WAITING,
    (PARKED, "finish"): FINISHED,
    (RUNNING, "preempt"): WAITING,
    (RUNNING, "finish"): FINISHED,
}


def in_state(status: RequestStatus) -> tuple[RequestStates, Request]:
    states = RequestStates(KVCacheManager(8, 4), MediaNeeds(EmbeddingCache(100, 100)))
    request = a_media_request("r", [1, (b"cat", (6,)), 2])
    for event in PATHS[status]:
        EVENTS[event](states, request)
    assert request.status is status
    return states, request


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("status", RequestStatus)
def test_each_transition_leads_where_the_table_says_or_is_refused(status: RequestStatus, event: str):
    states, request = in_state(status)
    num_blocks = len(request.block_ids)
    if (status, event) in ALLOWED:
        EVENTS[event](states, request)
        assert request.status is ALLOWED[status, event]
    else:
        with pytest.raises(InvalidTransitionError, match=f"cannot {event} request 'r': it is {status.value}"):
            EVENTS[event](states, request)
        assert request.status is status
        assert len(request.block_ids) == num_blocks
    states.check_integrity()


@pytest.mark.parametrize("event", ["preempt", "finish"])
def test_a_request_that_stops_running_gives_back_what_it_holds(event: str):
    states, request = in_state(RUNNING)
    EVENTS[event](states, request)
    assert request.block_ids == []
    assert states.take_dropped() == ["r"]
    assert states.take_dropped() == []


def test_blocks_are_given_back_with_the_last_step_that_writes_to_them():
    states, request = in_state(RUNNING)
    for step_id in (1, 2):
        states.in_flight.launched(step_id, [ScheduledRequest(request, 4, 0)])
    states.finish(request, FinishReason.ABORT)
    for step_id in (1, 2):
        assert request.block_ids
        states.completed(step_id)
        states.check_integrity()
    assert request.block_ids == []
    assert states.completed(2) == ()


def test_blocks_that_a_step_writes_to_are_not_taken():
    states, request = in_state(RUNNING)
    states.in_flight.launched(1, [ScheduledRequest(request, 4, 0)])
    with pytest.raises(InvalidTransitionError, match="cannot preempt request 'r': a step in flight writes to its blocks"):
        states.preempt(request)
    assert request.status is RUNNING
