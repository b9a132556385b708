"""Plans a step: asks the policies, and carries out their decisions.

The blocks for output tokens are allocated one by one. When no block is free, a running request of the lowest priority is preempted,
the last one of the tenant that holds most blocks: it loses its blocks and is computed again later. Requests with media compute the
tokens that their embeddings allow (media/gate.py).
"""

from __future__ import annotations

from triptych_engine.media.gate import MediaGate
from triptych_engine.media.needs import MediaNeeds
from triptych_engine.scheduling.cache.kv_cache import KVCacheManager
from triptych_engine.scheduling.pacer import BEGINNING_STEPS, StepPacer
from triptych_engine.scheduling.prompt_policy import (
    Admit,
    Compute,
    Decision,
    Fail,
    Follow,
    Load,
    Park,
    PromptPolicy,
    Reserve,
    SettleReservation,
)
from triptych_engine.scheduling.request import FinishReason, Request
from triptych_engine.scheduling.speculation.drafter import Drafter
from triptych_engine.scheduling.states import RequestStates
from triptych_engine.scheduling.step_plan import Reservation, StepPlan
from triptych_engine.scheduling.tenant_reserve import TenantReserve

#: How long decoding takes for the copies of a step where steps are not paced by time, in seconds: on GPUs, whose steps are shorter,
#: and whose copies are faster by more. A guess.
_DECODING_S = 0.1


class StepPlanner:
    """Fills steps with tokens of requests. One per scheduler.

    Args:
        states: the states of the requests; changed only by its transitions.
        kv_cache: gives blocks to requests that grow.
        needs: knows which embeddings are here.
        gate: knows which tokens can be computed with them.
        max_num_seqs, max_num_batched_tokens, can_chunk, pacer, drafter: see `Scheduler`.
    """

    def __init__(
        self,
        states: RequestStates,
        kv_cache: KVCacheManager,
        needs: MediaNeeds,
        gate: MediaGate,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        can_chunk: bool,
        pacer: StepPacer | None,
        drafter: Drafter | None,
    ) -> None:
        self._states, self._kv_cache, self._needs, self._gate = states, kv_cache, needs, gate
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._can_chunk = can_chunk
        self._pacer, self._drafter = pacer, drafter
        self._step_drafter: Drafter | None = None  # in the step that is being planned
        self._had_prompts = False  # in the last step
        self._reserve = TenantReserve(states, kv_cache, max_num_seqs)
        self._prompts = PromptPolicy(states, kv_cache, gate, self._reserve, max_num_seqs)
        self._steps_decoding = 0  # consecutive, including the last planned step
        self._shortest_first = True  # in the last step
        self._reservation: Reservation | None = None  # for the next step

    @property
    def has_work(self) -> bool:
        """Whether something can be computed now, given the results that are known."""
        plan = StepPlan(self._gate, self._max_num_batched_tokens, self._max_num_batched_tokens, None, can_chunk=self._can_chunk)
        if (copies := self._kv_cache.copies) is not None and copies.has_work:
            return True
        if any(request.decodes and plan.chunk(request, request.num_scheduled_tokens) for request in self._states.running):
            return True
        decisions = self._prompts.decide(plan, may_admit=True, shortest_first=self._shortest_first)
        return any(not isinstance(decision, Reserve) for decision in decisions)

    @property
    def needs_results_first(self) -> bool:
        """Whether the steps in flight must complete before the next step can be planned. This is the case when a request must be
        preempted: blocks that a step in flight writes to cannot be taken away. And when requests are tried one by one."""
        return bool(self._states.in_flight) and (bool(self._states.suspects) or self._lacks_blocks)

    @property
    def _lacks_blocks(self) -> bool:
        """Whether too few blocks are free for the newest tokens of all decoding requests."""
        num_free, running = self._kv_cache.pool.num_free_blocks, self._states.running
        if num_free >= len(running):
            return False
        return sum(self._kv_cache.num_missing_blocks(request) for request in running if request.decodes) > num_free

    def plan(self) -> StepPlan:
        """Plan the next step: first the decoding requests, then prompts. A request that raises an error is ended, and listed in
        `StepPlan.failed`."""
        num_preemptions = self._states.num_preemptions
        self._preempt()
        plan = self._new_plan()
        self._schedule_decoding(plan)
        self._shortest_first = not self._shortest_first
        # Blocks that a preemption has just freed must not go to a newly admitted request.
        may_admit = self._states.num_preemptions == num_preemptions
        for decision in self._prompts.decide(plan, may_admit=may_admit, shortest_first=self._shortest_first):
            self._carry_out(plan, decision)
        self._reservation = plan.next_reservation
        self._had_prompts = plan.output.num_prompt_tokens > 0
        if (copies := self._kv_cache.copies) is not None:
            plan.output.stores, plan.output.loads = copies.take(self._decoding_s(plan.output.num_decoding))
        return plan

    def _decoding_s(self, num_decoding: int) -> float:
        if not num_decoding:
            return 0.0
        return _DECODING_S if self._pacer is None else self._pacer.costs().step_s(num_decoding)

    def park_unless_ready(self, request: Request) -> None:
        """Park a request that has just become waiting, if it has nothing to compute before its embeddings arrive."""
        if request.media.items and not self._gate.is_ready(request):
            self._states.park(request, self._needs.start_of(request))

    def _new_plan(self) -> StepPlan:
        running, awaits_embeddings = self._states.running, self._needs.cache.num_fetching > 0
        num_decoding = len([request for request in running if request.decodes])
        self._steps_decoding = self._steps_decoding + 1 if num_decoding else 0
        max_prompt_tokens = max(1, self._max_num_batched_tokens - num_decoding)
        if num_decoding and self._pacer is not None:
            free_seats = self._max_num_seqs - len(running)
            num_prompts = sum(request.num_left > 1 for request in running) + min(free_seats, len(self._states.waiting))
            if num_prompts:
                beginning = self._steps_decoding <= BEGINNING_STEPS or self._has_resuming
                paced = self._pacer.prompt_tokens(num_decoding, num_prompts, beginning=beginning, encoding=awaits_embeddings)
                max_prompt_tokens = min(max_prompt_tokens, paced)
        drafter, self._step_drafter = self._drafter, None
        if drafter is not None and num_decoding:
            may_pay = drafter.begin_step(num_decoding, had_prompts=self._had_prompts, encoding=awaits_embeddings)
            self._step_drafter = drafter if may_pay else None
        return StepPlan(self._gate, self._max_num_batched_tokens, max_prompt_tokens, self._reservation, can_chunk=self._can_chunk)

    @property
    def _has_resuming(self) -> bool:
        """Whether streams wait for what an engine that was lost had computed. All of them together wait least if steps are long."""
        first = self._states.waiting.first()
        return (first is not None and first.is_resuming) or any(request.is_resuming for request in self._states.running)

    def _preempt(self) -> None:
        """Preempt requests until enough blocks are free for those that decode, and all but a suspect while there are any."""
        for request in list(self._states.running) if self._states.suspects else ():
            if request not in self._states.suspects:
                self._states.preempt(request)
                self.park_unless_ready(request)
        while self._lacks_blocks:
            # Preferably one whose embeddings are all here: the encoder may have dropped others.
            victims = self._reserve.victims()
            victim = next((request for request in victims if self._needs.can_recompute(request)), victims[0])
            self._states.preempt(victim)
            self.park_unless_ready(victim)

    def _schedule_decoding(self, plan: StepPlan) -> None:
        for request in list(self._states.running):
            if plan.is_full:
                break
            try:
                if not request.decodes or not plan.chunk(request, request.num_scheduled_tokens):
                    continue
                new_blocks = self._kv_cache.grow(request)
                drafts = [] if self._step_drafter is None else self._draft(self._step_drafter, plan, request, new_blocks)
                if new_blocks:
                    plan.output.new_block_ids[request.request_id] = new_blocks
                if self._kv_cache.groups is not None:
                    self._advance_groups(plan, request, 1, len(drafts))
                plan.put(request, 1, drafts)
            except Exception as error:
                self._fail(plan, request, error)

    def _draft(self, drafter: Drafter, plan: StepPlan, request: Request, new_blocks: list[int]) -> list[int]:
        """Draft tokens for a request. Adds the blocks for them to `new_blocks`."""
        # Each of the other requests may need a place in the step, and a block for its next token.
        num_others = len(self._states.running)
        most = min(request.max_num_tokens - request.num_tokens - 1, plan.free_room - num_others)
        drafts = drafter.propose(request, most) if most > 0 else []
        if not drafts:
            return []
        num_drafts, blocks = self._kv_cache.grow_ahead(request, len(drafts), self._kv_cache.pool.num_free_blocks - num_others)
        new_blocks += blocks
        return drafts[:num_drafts]

    def _carry_out(self, plan: StepPlan, decision: Decision) -> None:
        match decision:
            case SettleReservation():
                plan.settle_reservation()
            case Reserve(request, num_tokens):
                plan.reserve(request, num_tokens)
            case Fail(request, error):
                self._fail(plan, request, error)
            case Compute(request) | Admit(request) | Park(request) | Follow(request) | Load(request):
                try:
                    self._advance(plan, decision)
                except Exception as error:
                    self._fail(plan, request, error)

    def _advance(self, plan: StepPlan, decision: Compute | Admit | Park | Follow | Load) -> None:
        match decision:
            case Compute(request, num_tokens):
                self._advance_groups(plan, request, num_tokens)
                plan.put(request, num_tokens)
                self._states.waiting.charge(request.tenant, num_tokens)
                self._offer(plan, request, request.num_scheduled_tokens // self._kv_cache.block_size, num_tokens)
            case Admit(request, cached_blocks, num_tokens):
                self._states.admit(request, cached_blocks)
                self._advance_groups(plan, request, num_tokens)
                plan.output.new_window_block_ids.pop(request.request_id, None)  # a new sequence has them
                plan.put_new(request, num_tokens)
                self._states.waiting.charge(request.tenant, num_tokens)
                self._offer(plan, request, 0, num_tokens)
            case Park(request, start):
                self._states.park(request, start)
            case Follow(request, block_hash):
                self._states.follow(request, block_hash)
            case Load(request, cached_blocks):
                if (last := self._kv_cache.load(request, cached_blocks)) is not None:
                    self._states.follow(request, last)

    def _advance_groups(self, plan: StepPlan, request: Request, num_tokens: int, num_drafts: int = 0) -> None:
        """What the step needs of the caches of layers with a window, and of recurrent ones, for a request's next tokens."""
        blocks, snapshots = self._kv_cache.advance(request, num_tokens, num_drafts)
        if blocks:
            plan.output.new_window_block_ids[request.request_id] = blocks
        if snapshots:
            plan.output.snapshots[request.request_id] = snapshots

    def _offer(self, plan: StepPlan, request: Request, first: int, num_tokens: int) -> None:
        if copies := self._kv_cache.offer(request, first, request.num_scheduled_tokens + num_tokens):
            plan.output.offers[request.request_id] = copies

    def _fail(self, plan: StepPlan, request: Request, error: Exception) -> None:
        """End a request that raised an error, so that the others can continue."""
        plan.remove(request)
        self._states.finish(request, FinishReason.ERROR)
        plan.failed.append((request, error))
