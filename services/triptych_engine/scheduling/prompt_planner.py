"""Chooses the prompts of a step: whose turn it is, and which waiting requests are admitted.

Waiting requests are admitted with blocks for their whole prompt, so an admitted prompt can always finish. Requests with media that
could compute nothing worth its blocks are parked until their next embeddings are there; others overtake them meanwhile.
"""

from __future__ import annotations

import time
from bisect import insort
from collections import deque

from triptych_engine.media.gate import MediaGate
from triptych_engine.scheduling.kv_cache import KVCacheManager
from triptych_engine.scheduling.output import NewSequence
from triptych_engine.scheduling.queue import RequestQueue
from triptych_engine.scheduling.request import Request, RequestStatus
from triptych_engine.scheduling.step_plan import StepPlan


class PromptPlanner:
    """Fills a step's room with prompt tokens. Used by one scheduler, whose queues it shares.

    Args:
        kv_cache: gives blocks to who is admitted.
        media: knows which tokens have their embeddings.
        waiting: requests without blocks; those that are admitted leave it.
        running: requests with blocks, by queue_key; those that are admitted join it.
        max_num_seqs: requests that run at once.
    """

    def __init__(
        self, kv_cache: KVCacheManager, media: MediaGate, waiting: RequestQueue, running: list[Request], max_num_seqs: int
    ) -> None:
        self._kv_cache, self._media = kv_cache, media
        self._waiting, self._running = waiting, running
        self._max_num_seqs = max_num_seqs
        self._shortest_first = True  # in the last step that had prompts

    def fill(self, plan: StepPlan, *, may_admit: bool) -> None:
        """Add prompts to a step, be they running, and then with blocks for all their tokens, or waiting.

        They take turns, step by step: in one the first in line is computed first, in the next the one that has least to compute.
        So a short prompt does not wait for all the long ones before it, and those still go on.
        """
        self._serve_reservation(plan, may_admit=may_admit)
        self._shortest_first = not self._shortest_first
        key = _shortness_key if self._shortest_first else _queue_key
        running = deque(sorted((request for request in self._running if _has_prompt(request, plan)), key=key))
        while not plan.is_full:
            waiting = self._next_waiting() if may_admit else None
            if running and (waiting is None or key(running[0]) < key(waiting)):
                request = running.popleft()
                if num_tokens := plan.chunk(request, request.num_scheduled_tokens):
                    plan.put(request, num_tokens)
            elif waiting is not None:
                may_admit = self._admit(plan, waiting)
            else:
                break

    def _serve_reservation(self, plan: StepPlan, *, may_admit: bool) -> None:
        """The span that the last step had no room for goes before all other prompts, whoever's turn it is."""
        if plan.reservation is None:
            return
        request = plan.reservation.request
        if request.status is RequestStatus.RUNNING:
            if num_tokens := plan.chunk(request, request.num_scheduled_tokens):
                plan.put(request, num_tokens)
        elif may_admit and request.request_id in self._waiting and len(self._running) < self._max_num_seqs:
            self._admit(plan, request)
        plan.settle_reservation()

    def _next_waiting(self) -> Request | None:
        """Whom to admit next, if there is a seat."""
        first = self._waiting.first()
        if first is None or len(self._running) >= self._max_num_seqs:
            return None
        shortest = self._waiting.shortest() if self._shortest_first else None
        if shortest is None or shortest is first:
            return first
        # The first in line waits for blocks, and nobody takes those from it.
        num_blocks = sum(self._kv_cache.num_blocks_for(request.num_tokens) for request in (first, shortest))
        return shortest if num_blocks <= self._kv_cache.pool.num_free_blocks else first

    def _admit(self, plan: StepPlan, request: Request) -> bool:
        """Let a waiting request run, or wait for its embeddings elsewhere; False when it must go on waiting."""
        cached_blocks = self._kv_cache.find_cached_prefix(request)
        start = len(cached_blocks) * self._kv_cache.block_size
        if start < request.media.end:
            num_blocks = self._kv_cache.num_blocks_for(request.num_tokens)
            if not self._media.may_start(request, start, num_blocks):
                self._waiting.remove(request.request_id)
                self._media.park(request)
                return True
        # Who has no blocks shall have no room kept either.
        if not self._kv_cache.can_admit(request, cached_blocks):
            return False
        num_tokens = plan.chunk(request, start)
        if not num_tokens or not self._kv_cache.admit(request, cached_blocks):
            return False
        self._waiting.remove(request.request_id)
        insort(self._running, request, key=_queue_key)
        request.status = RequestStatus.RUNNING
        if request.first_scheduled_time is None:
            request.first_scheduled_time = time.monotonic()
        plan.output.new.append(NewSequence.of(request))
        plan.put(request, num_tokens)
        return True


def _has_prompt(request: Request, plan: StepPlan) -> bool:
    """Whether a running request has tokens before its newest one to compute, and is not in the step yet."""
    return request.num_left > 1 and request.request_id not in plan.output.num_scheduled_tokens


def _queue_key(request: Request) -> tuple[int, ...]:
    return request.queue_key


def _shortness_key(request: Request) -> tuple[int, ...]:
    return request.shortness_key
