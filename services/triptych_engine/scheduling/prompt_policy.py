"""Policy for the prompts of a step: the order in which they are computed, and which waiting requests are admitted. It changes no
state.

Waiting requests are admitted with blocks for their whole prompt, so an admitted prompt can always finish. Tenants take turns
(queue.py), and leave something to each other (tenant_reserve.py). A request with media that
could compute too few tokens to justify its blocks is parked until its next embeddings arrive. Other requests overtake it meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Container, Iterator
from dataclasses import dataclass

from triptych_engine.media.gate import MediaGate
from triptych_engine.scheduling.cache.kv_cache import KVCacheManager
from triptych_engine.scheduling.request import Request
from triptych_engine.scheduling.states import RequestStates
from triptych_engine.scheduling.step_plan import StepPlan
from triptych_engine.scheduling.tenant_reserve import TenantReserve

#: At most so many tenants whose request has to wait are passed over in a step.
_MAX_HELD = 16


@dataclass(frozen=True, slots=True)
class Compute:
    """A running request computes its next tokens in this step."""

    request: Request
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Admit:
    """A waiting request becomes running, and computes its first tokens after the cached prefix in this step."""

    request: Request
    cached_blocks: list[int]
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Park:
    """A waiting request is parked until its embeddings arrive. It will be computed from token `start` on."""

    request: Request
    start: int


@dataclass(frozen=True, slots=True)
class Reserve:
    """The next step reserves room for a span that does not fit in this step."""

    request: Request
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Follow:
    """Let a waiting request wait for blocks that a running request computes: equal prompts are computed once."""

    request: Request
    #: Hash of the last of these blocks.
    block_hash: bytes


@dataclass(frozen=True, slots=True)
class Load:
    """Load blocks of a waiting request from the second tier. It waits for them."""

    request: Request
    cached_blocks: list[int]


@dataclass(frozen=True, slots=True)
class SettleReservation:
    """All requests may use what is left of the reserved room."""


@dataclass(frozen=True, slots=True)
class Fail:
    """No decision could be made about a request."""

    request: Request
    error: Exception


Decision = Compute | Admit | Park | Follow | Load | Reserve | SettleReservation | Fail


class PromptPolicy:
    """Fills the token budget that is left in a step with prompt tokens.

    Args:
        states: the states of the requests.
        kv_cache: knows which blocks are free, and which prefixes are cached.
        gate: knows which tokens have their embeddings.
        reserve: knows what a tenant leaves to others.
        max_num_seqs: maximum number of running requests.
    """

    def __init__(
        self, states: RequestStates, kv_cache: KVCacheManager, gate: MediaGate, reserve: TenantReserve, max_num_seqs: int
    ) -> None:
        self._states, self._kv_cache, self._gate, self._shares = states, kv_cache, gate, reserve
        self._max_num_seqs = max_num_seqs

    def decide(self, plan: StepPlan, *, may_admit: bool, shortest_first: bool) -> Iterator[Decision]:
        """Yield the decisions for a step. Each one must be carried out before the next one is taken, which depends on it.

        Running and waiting prompts are treated alike. If `shortest_first` alternates from step to step, one step begins with the
        first prompt in the queue, and the next step with the prompt that has the fewest tokens left. So a short prompt does not
        wait for all long prompts before it, and the long prompts still make progress.
        """
        if self._states.suspects:
            yield from self._try_suspect(plan)
            return
        yield from self._serve_reservation(plan, may_admit=may_admit)
        key = self._key_of(_shortness_key if shortest_first else _queue_key)
        running = deque(sorted((request for request in self._states.running if _has_prompt(request, plan)), key=key))
        held = dict[str, Request]()  # tenant -> its next request, which has to wait for a seat or blocks
        while not plan.is_full:
            waiting = self._next_waiting(held, shortest_first=shortest_first) if may_admit else None
            if running and (waiting is None or key(running[0]) < key(waiting)):
                yield from self._compute(plan, running.popleft())
            elif waiting is not None:
                decisions = self._admit(plan, waiting, held.values())
                if decisions is None:
                    held[waiting.tenant] = waiting
                    # Behind a request that has to wait, only tenants that hold little are served.
                    may_admit = len(held) < _MAX_HELD and self._shares.may_be_passed(waiting)
                    continue
                yield from decisions
                may_admit = any(isinstance(decision, (Admit, Park, Follow, Load, Fail)) for decision in decisions)
            else:
                break

    def _try_suspect(self, plan: StepPlan) -> Iterator[Decision]:
        """One request that may be why the executor was lost runs alone, so that the loss of a step names it."""
        if running := next(iter(self._states.running), None):
            if _has_prompt(running, plan):
                yield from self._compute(plan, running)
        elif suspect := self._states.suspects.first(self._states.waiting):
            yield from self._admit(plan, suspect) or ()

    def _key_of(self, key: Callable[[Request], tuple[int, ...]]) -> Callable[[Request], tuple[int, ...]]:
        """The order of all prompts: as `key` says, but among those of the same priority, tenants take turns."""
        waiting = self._states.waiting
        if not waiting.has_several_tenants:
            return key
        return lambda request: (request.priority, waiting.counter(request.tenant), *key(request))

    def _serve_reservation(self, plan: StepPlan, *, may_admit: bool) -> Iterator[Decision]:
        """The span that did not fit in the last step is computed before all other prompts, independent of the order."""
        if plan.reservation is None:
            return
        request = plan.reservation.request
        if request.is_running:
            yield from self._compute(plan, request)
        elif may_admit and request.request_id in self._states.waiting and len(self._states.running) < self._max_num_seqs:
            yield from self._admit(plan, request) or ()
        yield SettleReservation()

    def _next_waiting(self, held: Container[str], *, shortest_first: bool) -> Request | None:
        """The request to admit next; None if no request waits or `max_num_seqs` requests are running.

        Args:
            held: tenants that get nothing more in this step.
        """
        waiting = self._states.waiting
        if len(self._states.running) >= self._max_num_seqs or (first := waiting.first(held)) is None:
            return None
        shortest = waiting.shortest(held) if shortest_first else None
        if shortest is None or shortest is first:
            return first
        # The first in the queue may be waiting for blocks. The shortest overtakes it only if there are blocks for both.
        return shortest if self._kv_cache.has_room_for_both(first, shortest) else first

    def _compute(self, plan: StepPlan, request: Request) -> list[Decision]:
        try:
            start = request.num_scheduled_tokens
            if num_tokens := plan.chunk(request, start):
                return [Compute(request, num_tokens)]
            return self._reserve(plan, request, start)
        except Exception as error:
            return [Fail(request, error)]

    def _admit(self, plan: StepPlan, request: Request, passed: Collection[Request] = ()) -> list[Decision] | None:
        """The decisions about a waiting request; None if it has to wait for a seat or for blocks.

        Args:
            passed: see `TenantReserve.may_admit`.
        """
        try:
            cached_blocks = self._kv_cache.find_cached_prefix(request)
            start = len(cached_blocks) * self._kv_cache.block_size
            awaited = None if request.media.items else self._kv_cache.awaited_block(request, cached_blocks)
            if awaited is not None:
                return [Follow(request, awaited)]
            num_offloaded = 0 if request.has_loaded else self._kv_cache.num_offloaded(request, cached_blocks)
            if request.media.matters_from(start) and not num_offloaded:
                num_blocks = self._kv_cache.num_blocks_for(request.num_tokens)
                if not self._gate.may_start(request, start, num_blocks):
                    return [Park(request, start)]
            # A request that cannot get its blocks does not reserve room either.
            num_blocks = self._kv_cache.num_free_blocks_for(request, cached_blocks)
            if not self._kv_cache.has_room(request, num_blocks) or not self._shares.may_admit(request, num_blocks, passed):
                return None
            if num_offloaded:
                return [Load(request, cached_blocks)]
            if num_tokens := plan.chunk(request, start):
                return [Admit(request, cached_blocks, num_tokens)]
            return self._reserve(plan, request, start)
        except Exception as error:
            return [Fail(request, error)]

    @staticmethod
    def _reserve(plan: StepPlan, request: Request, start: int) -> list[Decision]:
        num_tokens = plan.missing_room(request, start)
        return [Reserve(request, num_tokens)] if num_tokens else []


def _has_prompt(request: Request, plan: StepPlan) -> bool:
    """Whether a running request has more than its newest token to compute, and is not in the step yet."""
    return request.num_left > 1 and request not in plan.scheduled


def _queue_key(request: Request) -> tuple[int, ...]:
    return request.queue_key


def _shortness_key(request: Request) -> tuple[int, ...]:
    return request.shortness_key
