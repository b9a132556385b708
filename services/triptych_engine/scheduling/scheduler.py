"""Decides, step by step, which tokens of which requests are computed, and turns results into outputs.

There is no prefill phase and no decode phase. Each request has a number of tokens (prompt and output) and a number of computed
tokens. Every step distributes a token budget until the two numbers are equal. This one rule gives continuous batching (a decoding
request needs one token), chunked prefill (a long prompt gets what is left) and prefix caching (a request starts with computed
tokens). The rule is vLLM V1's (vllm/v1/core/sched/scheduler.py). Three things differ here: every decoding request gets its token
before prompts get the rest, on CPUs that rest is measured in time (pacer.py), and the shortest prompt takes turns with the first
(prompt_policy.py). Policies (PromptPolicy, MediaGate, StepPacer) decide and change nothing. The planner carries out their decisions
through the transitions of RequestStates.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable

from triptych.errors import DuplicateRequestError, QueueFullError, TriptychError

from triptych_engine.media.cache import EmbeddingCache
from triptych_engine.media.gate import MediaGate
from triptych_engine.media.item import Embeddings, FetchOrder
from triptych_engine.media.needs import MediaNeeds
from triptych_engine.scheduling.cache.kv_cache import KVCacheManager
from triptych_engine.scheduling.in_flight import ScheduledRequest
from triptych_engine.scheduling.output import SchedulerOutput, SequenceOutput, StepResult, failed_output, last_output
from triptych_engine.scheduling.pacer import StepPacer
from triptych_engine.scheduling.planner import StepPlanner
from triptych_engine.scheduling.request import FinishReason, Request, RequestStatus
from triptych_engine.scheduling.speculation.drafter import Drafter
from triptych_engine.scheduling.states import RequestStates
from triptych_engine.scheduling.statistics import StepStatistics


class Scheduler:
    """Plans steps, and turns their results into outputs. Not thread-safe: one thread calls it.

    Args:
        kv_cache: allocates and releases blocks.
        max_num_seqs: maximum number of running requests.
        max_num_batched_tokens: token budget of a step.
        max_waiting: requests that may wait; further ones are refused.
        max_model_len: longest sequence, prompt and output together, in tokens.
        max_embeddings: maximum number of embeddings that are held or being fetched.
        can_chunk: prompts may be divided among steps. If not, a step must have room for the longest one.
        pacer: limits the prompt tokens of steps in which requests decode; without it only the token budget does.
        drafter: proposes tokens that a step verifies, so that it may bring several for a request.
    """

    def __init__(
        self,
        kv_cache: KVCacheManager,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_waiting: int,
        max_model_len: int,
        max_embeddings: int = 0,
        can_chunk: bool = True,
        pacer: StepPacer | None = None,
        drafter: Drafter | None = None,
    ) -> None:
        self.kv_cache = kv_cache
        self._max_num_seqs, self._max_waiting, self._max_model_len = max_num_seqs, max_waiting, max_model_len
        self.statistics = StepStatistics()
        self.embeddings = EmbeddingCache(max_embeddings, max_kept_tokens=kv_cache.capacity_tokens)
        self._needs = MediaNeeds(self.embeddings)
        self._states = RequestStates(kv_cache, self._needs)
        self._gate = MediaGate(
            self._needs,
            max_span=max_num_batched_tokens,
            min_text_tokens=kv_cache.block_size,
            max_stalled=max_num_seqs // 2,
            max_stalled_blocks=kv_cache.pool.num_blocks // 2,
        )
        self._planner = StepPlanner(
            self._states,
            kv_cache,
            self._needs,
            self._gate,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            can_chunk=can_chunk,
            pacer=pacer,
            drafter=drafter,
        )
        self._pacer, self._drafter = pacer, drafter
        self._num_steps = 0
        self._failed: list[SequenceOutput] = []  # of requests that failed while a step was scheduled
        self.num_generated_tokens = 0
        self._uncharged = defaultdict[str, int](int)  # tenant -> new tokens of this step; charging each would cost two calls more

    @property
    def num_running(self) -> int:
        return len(self._states.running)

    @property
    def num_waiting(self) -> int:
        return self._states.num_waiting

    @property
    def num_preemptions(self) -> int:
        return self._states.num_preemptions

    @property
    def live_request_ids(self) -> list[str]:
        return list(self._states.live)

    @property
    def has_work(self) -> bool:
        """Whether `schedule` would find something to do now, given the results that are known."""
        return bool(self._states.dropped) or self._planner.has_work

    # -- adding and ending requests -------------------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises:
            DuplicateRequestError: the id is in use.
            NeverFitsError: it needs more KV cache than there is, or more embeddings at once than the engine may hold.
            QueueFullError: too many requests wait already.
        """
        if request.request_id in self._states.live:
            name = request.request_id
            raise DuplicateRequestError(f"request id {name!r} is in use", field="request_id", value=name)
        self.kv_cache.check(request)
        self._gate.check(request)
        # Requests that will run in the next step do not count as waiting.
        num_free = self._max_waiting + self._max_num_seqs - self.num_running - self.num_waiting
        # What another engine began is not refused: its client has output already.
        if num_free <= 0 and not request.carried_token_ids:
            message = f"{self.num_waiting} requests are waiting, the limit is {self._max_waiting}"
            raise QueueFullError(message, limit=self._max_waiting, value=self.num_waiting, retry_after_s=1.0)
        # Each tenant leaves as many places as it takes, so others always find some.
        waiting, num_own = self._states.waiting, self._states.num_waiting_of(request.tenant)
        if num_own >= num_free and not request.carried_token_ids and waiting.has_other_than(request.tenant):
            message = f"{num_own} requests of this tenant are waiting, and {num_free} places are left for all"
            raise QueueFullError(message, limit=num_free, value=num_own, retry_after_s=1.0)
        request.max_num_tokens = min(request.max_num_tokens, self._max_model_len)
        self._states.add(request)
        self._planner.park_unless_ready(request)

    def abort(self, request_ids: Iterable[str]) -> list[SequenceOutput]:
        """End requests; unknown ids are ignored. Returns their last outputs."""
        live = self._states.live
        return [self._finish(live[request_id], FinishReason.ABORT) for request_id in request_ids if request_id in live]

    def fail(self, request_ids: Iterable[str], error: TriptychError) -> list[SequenceOutput]:
        """End requests with an error; unknown ids are ignored. Returns their last outputs."""
        live = self._states.live
        return [self._finish(live[request_id], FinishReason.ERROR, error) for request_id in request_ids if request_id in live]

    def refuse(self, request: Request, error: TriptychError) -> list[SequenceOutput]:
        """The last output of a request for which `add` raised this error. If the request was added nevertheless, it is ended."""
        if self._states.live.get(request.request_id) is request:
            return [self._finish(request, FinishReason.ERROR, error)]
        usage = (request.num_prompt_tokens, 0, 0)
        return [SequenceOutput(request.request_id, finish_reason=FinishReason.ERROR, error=error, usage=usage)]

    def take_fetches(self) -> tuple[list[FetchOrder], list[int]]:
        """Embeddings to fetch now, and numbers of earlier orders to cancel. Must be called after each change."""
        self._unpark(self._needs.acquire())
        return self.embeddings.take_orders()

    def ids_awaiting(self, number: int) -> list[str]:
        """The ids of requests that wait for a fetch order."""
        return self.embeddings.waiting_ids(number)

    def arrive(self, number: int, result: Embeddings | TriptychError) -> list[SequenceOutput]:
        """Process the result of a fetch order; returns the last outputs of the requests that fail with it."""
        if not isinstance(result, TriptychError):
            self._unpark(self.embeddings.arrive(number, result))
            return []
        failed = dict(self._needs.fail(number, result))
        return [output for request_id, error in failed.items() for output in self.fail([request_id], error)]

    def reset_caches(self) -> int:
        """Drop cached prefixes, those of the second tier too, and unused embeddings; returns how many of the first were dropped."""
        self.embeddings.clear_unused()
        num_dropped = self.kv_cache.reset()
        if self.kv_cache.copies is not None:
            self.kv_cache.copies.tier.clear()
        return num_dropped

    def _unpark(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            request = self._states.parked.get(request_id)
            if request is not None and self._gate.is_ready(request):
                self._states.unpark(request)

    # -- planning a step ------------------------------------------------------------------------------------------------------

    @property
    def needs_results_first(self) -> bool:
        """Whether the steps in flight must complete before the next step can be scheduled."""
        return self._planner.needs_results_first

    def schedule(self) -> SchedulerOutput:
        """Schedule the next step: first the decoding requests, then prompts. Earlier steps may be in flight, unless
        `needs_results_first`.

        If a request raises an error, only that request fails: see `take_failed`.
        """
        plan = self._planner.plan()
        self._failed += [failed_output(request, error) for request, error in plan.failed]
        self._num_steps += 1
        output = plan.output
        output.step_id = self._num_steps
        output.awaits_embeddings = self.embeddings.num_fetching > 0
        output.dropped = self._states.take_dropped()
        for new in output.new:
            self.statistics.admitted(self._states.live[new.request_id])
        self._states.in_flight.launched(output.step_id, list(plan.scheduled.values()))
        return output

    def take_failed(self) -> list[SequenceOutput]:
        """The last outputs of requests that failed in `schedule`, since the last call."""
        failed, self._failed = self._failed, []
        return failed

    # -- the results of a step ------------------------------------------------------------------------------------------------

    def observe(self, scheduled: SchedulerOutput, step_s: float) -> None:
        """Learn how long a step took."""
        self.statistics.completed(scheduled, step_s)
        has_copies = scheduled.stores or scheduled.loads or scheduled.offers  # they take time that tokens do not
        fills_slots = any(sequence.encoder_states is not None for sequence in scheduled.new)  # so does this
        if self._pacer is not None and scheduled.num_scheduled_tokens and not has_copies and not fills_slots:
            # A draft token costs about what a sequence more does: its layers and its logits.
            num_decoding = scheduled.num_decoding + scheduled.num_draft_tokens
            self._pacer.observe(num_decoding, scheduled.num_prompt_tokens, step_s, encoding=scheduled.awaits_embeddings)

    def update_from_output(self, scheduled: SchedulerOutput, result: StepResult) -> list[SequenceOutput]:
        """Process the result of a step; returns an output for each request that got tokens, failed or ended.

        If a request raises an error, only that request fails.
        """
        outputs, now = [], time.monotonic()
        for one in self._completed(scheduled, result):
            try:
                output = self._update_request(one, result, now)
            except Exception as error:
                self._states.finish(one.request, FinishReason.ERROR)
                output = failed_output(one.request, error)
            if output is not None:
                outputs.append(output)
        while self._uncharged:
            tenant, num_tokens = self._uncharged.popitem()
            self._states.waiting.charge(tenant, 0, num_tokens)
        return outputs

    def fail_step(self, scheduled: SchedulerOutput, error: TriptychError) -> list[SequenceOutput]:
        """End the requests of a step that failed. Returns their last outputs."""
        return [self._finish(one.request, FinishReason.ERROR, error) for one in self._completed(scheduled, None)]

    def restart(self, lost: Iterable[SchedulerOutput], error: TriptychError) -> list[SequenceOutput]:
        """Begin anew with an executor that knows no sequence and has an empty cache. All steps in flight are `lost`.

        All sequences of the lost steps are suspect. They are computed again one by one, without any other, until each has shown
        that it is not the reason. One in whose step the executor is lost then ends with the error, and so does one that was
        concerned for the third time. Returns their last outputs.
        """
        concerned = {one.request.request_id: one.request for scheduled in lost for one in self._completed(scheduled, None)}
        reasons = self._states.suspects.lost(concerned.values())
        outputs = [self._finish(request, FinishReason.ERROR, error) for request in reasons]
        self.kv_cache.reset()  # first: a request that waits is told which blocks it will find
        for request in list(self._states.running):
            self._states.preempt(request)
            self._planner.park_unless_ready(request)
        self._states.take_dropped()
        return outputs

    def _completed(self, scheduled: SchedulerOutput, result: StepResult | None) -> list[ScheduledRequest]:
        """The requests of a step that is over, without those that ended while it ran. `result` is None if the step failed."""
        completed = self._states.completed(scheduled.step_id)
        if (copies := self.kv_cache.copies) is not None:
            copies.stored(scheduled.stores, failed=result is None)
            copies.loaded(scheduled.loads, failed=result is None)
            # What a request computed that failed, now or in an earlier step, is of no use to others.
            wrong = {one.request.request_id for one in completed if one.request.finish_reason is FinishReason.ERROR}
            for request_id, offered in scheduled.offers.items():
                has_failed = result is None or request_id in wrong or request_id in result.errors or request_id in result.refusals
                copies.stored(offered, failed=has_failed)
        return [one for one in completed if one.request.status is not RequestStatus.FINISHED]

    def _update_request(self, scheduled: ScheduledRequest, result: StepResult, now: float) -> SequenceOutput | None:
        request, request_id = scheduled.request, scheduled.request.request_id
        if request_id in result.errors or request_id in result.refusals:
            return self._finish(request, FinishReason.ERROR, result.error(request_id))
        if request.prompt_logprobs is not None:
            request.prompt_logprobs += result.prompt_logprobs.get(request_id, [])
        if not scheduled.max_new_tokens:
            self._commit(request, scheduled.num_tokens)
            return None
        if request.pooling is not None:
            request.pooled = result.pooled[request_id]
            return self._finish(request, FinishReason.STOP)
        token_ids = result.token_ids[request_id]
        if not 0 < len(token_ids) <= scheduled.max_new_tokens:
            raise AssertionError(f"the step brought {len(token_ids)} tokens instead of 1 to {scheduled.max_new_tokens}")
        if scheduled.max_new_tokens > 1 and self._drafter is not None:
            num_drafts, num_accepted = scheduled.max_new_tokens - 1, len(token_ids) - 1
            self._drafter.observe(request, num_drafts, num_accepted)
            self.statistics.drafted(num_drafts, num_accepted)
        num_before = len(request.token_ids)
        reason: FinishReason | None = FinishReason.LENGTH
        is_first = request.first_token_time is None
        if is_first:
            request.first_token_time = now
            if request.sampling.max_tokens and not request.carried_token_ids:
                self.statistics.first_token.observe(now - request.arrival_time)
        else:  # as `Histogram.observe`, without the call
            gaps, gap_s = self.statistics.gaps, now - request.last_token_time
            gaps.counts[bisect_left(gaps.bounds, gap_s)] += 1
            gaps.total += gap_s
        request.last_token_time = now
        if request.sampling.max_tokens:  # with 0, only the prompt was to be computed
            reason = request.append(token_ids, is_complete=request_id in result.complete)
        num_new_tokens = len(request.token_ids) - num_before
        if request in self._states.suspects.left:  # a dictionary: a call for each sequence would be felt
            self._states.suspects.got_tokens(request, num_new_tokens)
        # Of the new tokens that were kept, all but the last were also computed: each was the input for the next one.
        self._commit(request, scheduled.num_tokens + num_new_tokens - (num_new_tokens > 0))
        self.num_generated_tokens += num_new_tokens
        self._uncharged[request.tenant] += num_new_tokens
        output = SequenceOutput(request_id) if reason is None else self._finish(request, reason)
        output.token_ids, output.is_first = request.token_ids[num_before:], is_first
        if self.kv_cache.offers_prompts and num_before == request.num_prompt_tokens:
            output.usage = (request.num_prompt_tokens, request.num_output_tokens, request.num_cached_tokens or 0)
        if request_id in result.logprobs:
            output.logprobs = result.logprobs[request_id][:num_new_tokens]
        if request.prompt_logprobs is not None:
            output.prompt_logprobs, request.prompt_logprobs = request.prompt_logprobs, None
        return output

    def _commit(self, request: Request, num_tokens: int) -> None:
        self.kv_cache.commit(request, num_tokens)
        if request.media.items:
            self._needs.advance(request, request.num_computed_tokens)

    def _finish(self, request: Request, reason: FinishReason, error: TriptychError | None = None) -> SequenceOutput:
        self._states.finish(request, reason)
        return last_output(request, error)

    def check_integrity(self) -> None:
        """Raise AssertionError unless requests, steps in flight, blocks and embeddings agree. For tests."""
        self._states.check_integrity()
