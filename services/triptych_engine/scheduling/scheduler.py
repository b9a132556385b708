"""Decides, step by step, which tokens of which requests are computed.

There is no prefill phase and no decode phase. Each request has tokens (prompt and output) and a number of them that are computed;
every step hands out a budget of tokens until the two numbers are equal. From that one rule follow continuous batching (a decoding
request asks for one token), chunked prefill (a long prompt gets what is left) and prefix caching (a request starts with tokens
computed). The rule is vLLM V1's (vllm/v1/core/sched/scheduler.py); of our own is that every decoding request gets its token before
prompts get the rest, that this rest is measured in time (see step_pacer), and that the shortest prompt has a turn with the first
(see prompt_planner, which also admits those that wait).

Output grows block by block. When no block is left, the running request that should run last loses its blocks and is computed again
later (preemption by recompute). Requests with media compute what their embeddings allow (see media_gate).
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from triptych_common.rpc.errors import DuplicateRequestError, InternalError, QueueFullError, TriptychError

from triptych_engine.media.cache import EmbeddingCache
from triptych_engine.media.gate import MediaGate
from triptych_engine.media.item import Embeddings, FetchOrder
from triptych_engine.scheduling.in_flight import StepsInFlight
from triptych_engine.scheduling.kv_cache import KVCacheManager
from triptych_engine.scheduling.output import SchedulerOutput, SequenceOutput, StepResult, last_output
from triptych_engine.scheduling.pacer import BEGINNING_STEPS, StepPacer
from triptych_engine.scheduling.prompt_planner import PromptPlanner
from triptych_engine.scheduling.queue import RequestQueue
from triptych_engine.scheduling.request import FinishReason, Request, RequestStatus
from triptych_engine.scheduling.step_plan import Reservation, StepPlan


class Scheduler:
    """Owns all live requests and the KV cache's bookkeeping. Not thread-safe: one thread calls it.

    Args:
        kv_cache: gives and takes blocks.
        max_num_seqs: requests that run at once.
        max_num_batched_tokens: token budget of a step.
        max_waiting: requests that may wait; further ones are refused.
        max_model_len: longest sequence, prompt and output together, in tokens.
        max_embeddings: embeddings of media that are held or on their way at once.
        pacer: limits the prompt tokens of steps in which others decode; without it only the token budget does.
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
        pacer: StepPacer | None = None,
    ) -> None:
        self.kv_cache = kv_cache
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._max_waiting = max_waiting
        self._max_model_len = max_model_len
        self._waiting = RequestQueue()
        self._running: list[Request] = []  # by queue_key: the last one loses its blocks first
        self._requests: dict[str, Request] = {}  # request_id -> each live request
        self._in_flight = StepsInFlight(kv_cache)
        self._dropped: list[str] = []  # ids that the runner knows and shall forget
        self._media = MediaGate(
            EmbeddingCache(max_embeddings),
            max_span=max_num_batched_tokens,
            worthwhile=kv_cache.block_size,
            max_stalled=max_num_seqs // 2,
            max_stalled_blocks=kv_cache.pool.num_blocks // 2,
        )
        self._prompts = PromptPlanner(kv_cache, self._media, self._waiting, self._running, max_num_seqs)
        self._pacer = pacer
        self._steps_decoding = 0  # one after the other, up to the newest
        self._reservation: Reservation | None = None  # for the next step
        self._idle = False  # nothing can be computed until somebody comes, goes, or gets embeddings
        self._arrivals = 0
        self.num_preemptions = 0
        self.num_generated_tokens = 0

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting) + len(self._media.parked)

    @property
    def live_request_ids(self) -> list[str]:
        return list(self._requests)

    @property
    def has_work(self) -> bool:
        """Whether `schedule` may return something for the runner to do."""
        return bool(self._requests or self._dropped) and not self._idle

    # -- requests come and go -------------------------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises:
            DuplicateRequestError: the id is in use.
            NeverFitsError: it needs more KV cache than there is, or more embeddings at once than the engine may hold.
            QueueFullError: too many requests wait already.
        """
        if request.request_id in self._requests:
            raise DuplicateRequestError(
                f"request id {request.request_id!r} is in use", field="request_id", value=request.request_id
            )
        self.kv_cache.check(request)
        self._media.check(request)
        # Those that will run in the next step are not waiting for anybody.
        num_free_seats = self._max_num_seqs - len(self._running)
        if self.num_waiting >= self._max_waiting + num_free_seats:
            raise QueueFullError(
                f"{self.num_waiting} requests are waiting, the limit is {self._max_waiting}",
                limit=self._max_waiting,
                value=self.num_waiting,
                retry_after_s=1.0,
            )
        request.max_num_tokens = min(request.max_num_tokens, self._max_model_len)
        request.arrival = self._arrivals
        self._arrivals += 1
        self._requests[request.request_id] = request
        self._wait(request)

    def abort(self, request_ids: Iterable[str]) -> list[SequenceOutput]:
        """End requests; unknown ids are ignored. Returns their last outputs."""
        found = [self._requests[request_id] for request_id in request_ids if request_id in self._requests]
        return [self._finish(request, FinishReason.ABORT) for request in found]

    # -- embeddings -----------------------------------------------------------------------------------------------------------

    def take_fetches(self) -> tuple[list[FetchOrder], list[int]]:
        """Embeddings to fetch now, and numbers of earlier orders that are not wanted any more. To be called after each change."""
        if served := self._media.acquire():
            self._unpark(served)
        return self._media.cache.take_orders()

    def arrive(self, number: int, result: Embeddings | TriptychError) -> list[SequenceOutput]:
        """Take what came of an order; returns the last outputs of the requests that fail with it."""
        self._idle = False
        if not isinstance(result, TriptychError):
            self._unpark(self._media.cache.arrive(number, result))
            return []
        failed = {request.request_id: (request, error) for request, error in self._media.fail(number, result)}
        return [self._finish(request, FinishReason.ERROR, error) for request, error in failed.values()]

    def reset_caches(self) -> int:
        """Forget cached prefixes and embeddings that nobody uses; returns how many prefixes were forgotten."""
        self._media.cache.clear_unused()
        return self.kv_cache.pool.reset_cache()

    def _wait(self, request: Request) -> None:
        """Queue a request that holds no blocks."""
        self._idle = False
        if request.media.items:
            cached_blocks = self.kv_cache.find_cached_prefix(request)
            self._media.want(request, len(cached_blocks) * self.kv_cache.block_size)
            if not self._media.is_ready(request):
                self._media.park(request)
                return
        self._waiting.push(request)

    def _unpark(self, requests: Iterable[Request]) -> None:
        for request in self._media.unpark(requests):
            self._waiting.push(request)
        self._idle = False

    # -- one step -------------------------------------------------------------------------------------------------------------

    @property
    def must_book(self) -> bool:
        """Whether a step in flight has to be booked before the next can be scheduled: there are not blocks for all who decode, and
        nobody gives up blocks that a step is writing to."""
        num_free = self.kv_cache.pool.num_free_blocks
        if not self._in_flight or num_free >= len(self._running):
            return False
        return sum(self.kv_cache.num_missing_blocks(request) for request in self._running if request.decodes) > num_free

    def schedule(self) -> SchedulerOutput:
        """The next step's work: who decodes first, then prompts. Steps before it may be in flight, unless `must_book`."""
        num_preemptions = self.num_preemptions
        plan = self._new_plan()
        has_reservation = plan.reservation is not None
        self._schedule_decoding(plan)
        # Blocks that were just taken from one are not for the next to admit.
        has_preempted = self.num_preemptions > num_preemptions
        self._prompts.fill(plan, may_admit=not has_preempted)
        if not has_preempted:
            is_busy = bool(plan.output.num_scheduled_tokens or self._dropped or self._in_flight)
            self._idle = not (is_busy or has_reservation or plan.next_reservation)
        self._reservation = plan.next_reservation
        plan.output.awaits_embeddings = self._awaits_embeddings
        plan.output.dropped, self._dropped = self._dropped, []
        self._in_flight.take_off(plan.output)
        return plan.output

    def observe(self, scheduled: SchedulerOutput, step_s: float) -> None:
        """Learn how long a step took."""
        if self._pacer is not None and scheduled.num_scheduled_tokens:
            counts = scheduled.num_decoding, scheduled.num_prompt_tokens
            self._pacer.observe(*counts, step_s, encoding=scheduled.awaits_embeddings)

    def _new_plan(self) -> StepPlan:
        decoding = [request for request in self._running if request.decodes]
        num_decoding = len(decoding)
        self._steps_decoding = self._steps_decoding + 1 if decoding else 0
        max_prompt_tokens = max(1, self._max_num_batched_tokens - num_decoding)
        if num_decoding and self._pacer is not None:
            free_seats = self._max_num_seqs - len(self._running)
            num_prompts = sum(request.num_left > 1 for request in self._running) + min(free_seats, len(self._waiting))
            if num_prompts:
                beginning = self._steps_decoding <= BEGINNING_STEPS
                paced = self._pacer.prompt_tokens(num_decoding, num_prompts, beginning=beginning, encoding=self._awaits_embeddings)
                max_prompt_tokens = min(max_prompt_tokens, paced)
        return StepPlan(self._media, self._max_num_batched_tokens, max_prompt_tokens, self._reservation)

    @property
    def _awaits_embeddings(self) -> bool:
        return self._media.cache.num_fetching > 0

    def _schedule_decoding(self, plan: StepPlan) -> None:
        index = 0
        while index < len(self._running) and not plan.is_full:  # preemption shortens the list behind the index
            request = self._running[index]
            index += 1
            if not request.decodes or not plan.chunk(request, request.num_scheduled_tokens):
                continue
            new_blocks = self._grow(request)
            if new_blocks is None:
                break
            if new_blocks:
                plan.output.new_block_ids[request.request_id] = new_blocks
            plan.put(request, 1)

    def _grow(self, request: Request) -> list[int] | None:
        """Blocks for the request's newest token, taken from the requests that should run last; None when it had to give up its
        own."""
        while (blocks := self.kv_cache.grow(request)) is None:
            victim = self._running[-1]
            self._preempt(victim)
            if victim is request:
                return None
        return blocks

    def _preempt(self, request: Request) -> None:
        if request.num_in_flight_tokens:
            raise AssertionError(f"request {request.request_id} loses blocks that a step in flight writes to")
        self._stop_running(request)
        if request.prompt_logprobs is not None:
            request.prompt_logprobs = []  # they will be computed again
        request.status = RequestStatus.PREEMPTED
        request.num_preemptions += 1
        self.num_preemptions += 1
        self._wait(request)

    def _stop_running(self, request: Request) -> None:
        self._running.remove(request)
        self._in_flight.release(request)
        self._dropped.append(request.request_id)

    def update(self, scheduled: SchedulerOutput, result: StepResult) -> list[SequenceOutput]:
        """Book what the runner computed; returns an output for each sequence that got a token, an error or its end."""
        self._land(scheduled)
        outputs = []
        for part in scheduled.parts:
            request, request_id = part.request, part.request.request_id
            if request.status is RequestStatus.FINISHED:  # while the step ran
                continue
            if request_id in result.errors:
                outputs.append(self._finish(request, FinishReason.ERROR, InternalError(result.errors[request_id])))
                continue
            self.kv_cache.commit(request, part.num_tokens)
            if request.media.items:
                self._media.keep_up(request)
            if request.prompt_logprobs is not None:
                request.prompt_logprobs += result.prompt_logprobs.get(request_id, [])
            token_id = result.token_ids.get(request_id)
            if token_id is None:
                continue
            output = self._append_token(request, token_id)
            if request.prompt_logprobs is not None:
                output.prompt_logprobs, request.prompt_logprobs = request.prompt_logprobs, None
            if output.token_ids and request_id in result.logprobs:
                output.logprobs = [result.logprobs[request_id]]
            outputs.append(output)
        return outputs

    def fail_step(self, scheduled: SchedulerOutput, error: TriptychError) -> list[SequenceOutput]:
        """End the requests of a step that failed. Returns their last outputs."""
        self._land(scheduled)
        requests = [part.request for part in scheduled.parts if part.request.status is not RequestStatus.FINISHED]
        return [self._finish(request, FinishReason.ERROR, error) for request in requests]

    def _land(self, scheduled: SchedulerOutput) -> None:
        self._in_flight.land(scheduled)
        if scheduled.parts:
            self._idle = False

    def _append_token(self, request: Request, token_id: int) -> SequenceOutput:
        if request.first_token_time is None:
            request.first_token_time = time.monotonic()
        if request.sampling.max_tokens == 0:  # the prompt alone was asked for
            return self._finish(request, FinishReason.LENGTH)
        reason = request.append(token_id)
        self.num_generated_tokens += 1
        output = SequenceOutput(request.request_id) if reason is None else self._finish(request, reason)
        output.token_ids = [token_id]
        return output

    def _finish(self, request: Request, reason: FinishReason, error: TriptychError | None = None) -> SequenceOutput:
        """Take a live request out of everything; its blocks are free as soon as no step with it is in flight."""
        self._idle = False
        if request.request_id in self._waiting:
            self._waiting.remove(request.request_id)
        elif request.request_id not in self._media.parked:
            self._stop_running(request)
        if request.media.items:
            self._media.forget(request)
        del self._requests[request.request_id]
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason
        return last_output(request, error)

    def check_integrity(self) -> None:
        """Raise AssertionError unless queues, requests and blocks agree. For tests."""
        running, live = set(self._running), set(self._requests.values())
        if not running <= live or len(live) != len(running) + self.num_waiting:
            raise AssertionError("each live request must be running, waiting or parked")
        if any(request.request_id in self._waiting or request.request_id in self._media.parked for request in running):
            raise AssertionError("a running request waits")
        if any(request_id in self._waiting for request_id in self._media.parked):
            raise AssertionError("a parked request waits")
        for request in live:
            if request not in running and (request.block_ids or request.num_computed_tokens):
                raise AssertionError(f"waiting request {request.request_id} holds blocks")
            if request.num_scheduled_tokens > request.num_tokens:
                raise AssertionError(f"request {request.request_id} has more tokens computed than it has")
            if len(request.block_ids) * self.kv_cache.block_size < request.num_scheduled_tokens:
                raise AssertionError(f"request {request.request_id} has tokens without a block")
        self._in_flight.check_integrity(live)
        self.kv_cache.pool.check_integrity(request.block_ids for request in live | self._in_flight.requests)
        self._media.check_integrity(live)
