"""The single owner of request states.

A request is in one state at a time, and each state has its container and its resources:

    state     container       holds
    waiting   waiting queue   no KV blocks
    parked    parked          no KV blocks; it waits for embeddings, or for blocks that another request computes
    running   running list    KV blocks, those of windows, a recurrent state, one of max_num_seqs, a row in the executor
    finished  none            the first three, for as long as a step in flight writes to them

The transitions below are the only way to change a state. Each one moves the request between containers and releases what the
request no longer needs. All other parts of the scheduler only decide which transition comes next.
"""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Sequence

from triptych_engine.media.needs import MediaNeeds
from triptych_engine.scheduling.cache.kv_cache import KVCacheManager
from triptych_engine.scheduling.in_flight import ScheduledRequest, StepsInFlight
from triptych_engine.scheduling.queue import RequestQueue
from triptych_engine.scheduling.request import FinishReason, Request, RequestStatus
from triptych_engine.scheduling.suspects import Suspects

#: More than the requests of an engine's life.
_EARLIER = 1 << 60
_NEW, _WAITING, _PARKED, _RUNNING, _FINISHED = RequestStatus
#: Transition -> the states that it starts from.
_ACCEPTED = {
    "add": (_NEW,),
    "admit": (_WAITING,),
    "park": (_WAITING,),
    "follow": (_WAITING,),
    "unpark": (_PARKED,),
    "preempt": (_RUNNING,),
    "finish": (_WAITING, _PARKED, _RUNNING),
}


class InvalidTransitionError(Exception):
    """A transition that the current state of the request does not allow. Always a bug."""


class RequestStates:
    """All live requests, their states and what they hold.

    Args:
        kv_cache: allocates and releases blocks.
        media: assigns and releases embeddings.
    """

    def __init__(self, kv_cache: KVCacheManager, media: MediaNeeds) -> None:
        self._kv_cache, self._media = kv_cache, media
        self.live: dict[str, Request] = {}  # request_id -> request
        self.waiting = RequestQueue()
        self.parked: dict[str, Request] = {}  # request_id -> request
        self._followers: dict[bytes, list[Request]] = {}  # hash of a block -> parked requests that wait for it
        kv_cache.on_settled = self._unpark_followers
        self.running: list[Request] = []  # by queue_key
        self.suspects = Suspects()
        media.goes_first = self.suspects.__contains__
        self.in_flight = StepsInFlight()
        self.dropped: list[str] = []  # ids that the executor knows and must drop
        self.num_preemptions = 0
        self._num_arrivals = 0

    @property
    def num_waiting(self) -> int:
        """Number of live requests without blocks."""
        return len(self.waiting) + len(self.parked)

    def num_waiting_of(self, tenant: str) -> int:
        """Number of a tenant's live requests without blocks."""
        return self.waiting.num_of(tenant) + sum(one.tenant == tenant for one in self.parked.values())

    # -- transitions; each raises InvalidTransitionError, and changes nothing, if the state does not allow it ---------------------

    def add(self, request: Request) -> None:
        """New -> waiting."""
        self._check(request, "add")
        # What another engine began arrived there long ago.
        request.arrival = self._num_arrivals - (_EARLIER if request.carried_token_ids else 0)
        self._num_arrivals += 1
        self.live[request.request_id] = request
        self._wait(request)
        self._kv_cache.add(request)

    def admit(self, request: Request, cached_blocks: list[int]) -> None:
        """Waiting -> running, with blocks for all its tokens; the first blocks are from the prefix cache. Enough must be free."""
        self._check(request, "admit")
        self._kv_cache.allocate(request, cached_blocks)
        self.waiting.take(request)
        request.status = _RUNNING
        insort(self.running, request, key=_queue_key)
        if request.first_scheduled_time is None:
            request.first_scheduled_time = time.monotonic()
        if request.media.items:
            self._media.admit(request, request.num_computed_tokens)

    def park(self, request: Request, start: int) -> None:
        """Waiting -> parked: it waits for embeddings, and will be computed from token `start` on."""
        self._check(request, "park")
        self.waiting.remove(request.request_id)
        request.status = _PARKED
        self.parked[request.request_id] = request
        self._media.restart(request, start)

    def follow(self, request: Request, block_hash: bytes) -> None:
        """Waiting -> parked: it waits for a block that another request computes, or that is being loaded."""
        self._check(request, "follow")
        self.waiting.remove(request.request_id)
        request.status = _PARKED
        self.parked[request.request_id] = request
        self._followers.setdefault(block_hash, []).append(request)

    def _unpark_followers(self, block_hash: bytes) -> None:
        """Parked -> waiting, of all that wait for this block."""
        for request in self._followers.pop(block_hash, ()):
            if request.status is _PARKED:  # it may have ended meanwhile
                self.unpark(request)

    def unpark(self, request: Request) -> None:
        """Parked -> waiting."""
        self._check(request, "unpark")
        del self.parked[request.request_id]
        request.status = _WAITING
        self.waiting.push(request)

    def preempt(self, request: Request) -> None:
        """Running -> waiting, without blocks: it will be computed again from its start."""
        self._check(request, "preempt")
        if request.num_in_flight_tokens:
            raise InvalidTransitionError(f"cannot preempt request {request.request_id!r}: a step in flight writes to its blocks")
        self._stop_running(request)
        if request.prompt_logprobs is not None:
            request.prompt_logprobs = []  # they will be computed again
        request.num_preemptions += 1
        request.preemption_times += (time.monotonic(),)
        self.num_preemptions += 1
        self._wait(request)

    def finish(self, request: Request, reason: FinishReason) -> None:
        """Any live state -> finished. Its blocks are released when no step in flight writes to them any more."""
        self._check(request, "finish")
        self._kv_cache.finish(request)  # before its blocks are released
        if request.status is _WAITING:
            self.waiting.remove(request.request_id)
        elif request.status is _PARKED:
            del self.parked[request.request_id]
        else:
            self._stop_running(request)
        if request.media.items:
            self._media.forget(request)
        del self.live[request.request_id]
        self.suspects.discard(request)
        request.status = _FINISHED
        request.finish_reason = reason

    # -- steps ----------------------------------------------------------------------------------------------------------------

    def take_dropped(self) -> list[str]:
        """The ids that the executor must drop before the next step."""
        dropped, self.dropped = self.dropped, []
        return dropped

    def completed(self, step_id: int) -> Sequence[ScheduledRequest]:
        """Record that a step has ended, with or without an error, and return its work. A request that finished while the step ran
        releases its blocks when the last of its steps has ended."""
        scheduled = self.in_flight.completed(step_id)
        for one in scheduled:
            request = one.request
            if request.status is _FINISHED and not request.num_in_flight_tokens:
                self._kv_cache.release(request)
        return scheduled

    def _check(self, request: Request, event: str) -> None:
        if request.status not in _ACCEPTED[event]:
            raise InvalidTransitionError(f"cannot {event} request {request.request_id!r}: it is {request.status.value}")

    def _wait(self, request: Request) -> None:
        request.status = _WAITING
        self.waiting.push(request)
        request.has_loaded = False
        if request.media.items:
            cached_blocks = self._kv_cache.find_cached_prefix(request)
            num_blocks = len(cached_blocks) + self._kv_cache.num_offloaded(request, cached_blocks)
            self._media.want(request, num_blocks * self._kv_cache.block_size)

    def _stop_running(self, request: Request) -> None:
        self.running.remove(request)
        self.dropped.append(request.request_id)
        if not request.num_in_flight_tokens:
            self._kv_cache.release(request)

    def check_integrity(self) -> None:
        """Raise AssertionError unless states, containers, steps in flight and blocks agree. For tests."""
        for request in self.live.values():
            places = (request.request_id in self.waiting, request.request_id in self.parked, request in self.running)
            if places != (request.status is _WAITING, request.status is _PARKED, request.status is _RUNNING):
                raise AssertionError(f"request {request.request_id} is {request.status.value}, but not in that container alone")
            if not request.is_running and (request.block_ids or request.num_computed_tokens or request.num_in_flight_tokens):
                raise AssertionError(f"{request.status.value} request {request.request_id} holds blocks")
            if request.num_scheduled_tokens > request.num_tokens:
                raise AssertionError(f"request {request.request_id} has more tokens computed than it has")
            if len(request.block_ids) * self._kv_cache.block_size < request.num_scheduled_tokens:
                raise AssertionError(f"request {request.request_id} has tokens without a block")
        if len(self.live) != len(self.running) + self.num_waiting:
            raise AssertionError("a request that has ended is waiting, parked or running")
        if self.running != sorted(self.running, key=_queue_key):
            raise AssertionError("the running requests are not in order")
        live = set(self.live.values())
        self.in_flight.check_integrity(live)
        copies = self._kv_cache.copies
        holders = [request.block_ids for request in live | self.in_flight.requests]
        self._kv_cache.pool.check_integrity([*holders, *([] if copies is None else copies.holders)])
        if self._kv_cache.groups is not None:
            self._kv_cache.groups.check_integrity(live | self.in_flight.requests)
        self._media.check_integrity(set(self.live))


def _queue_key(request: Request) -> tuple[int, int]:
    return request.queue_key
