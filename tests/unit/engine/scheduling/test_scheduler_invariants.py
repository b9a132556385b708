"""Whatever happens in whatever order, with however many steps in flight: no block leaks or is used twice, every request ends in one
last output, and text depends on nothing but the request.

The executor fails, is late, and brings several tokens per step.
"""

from __future__ import annotations

from collections import deque

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.builders.engine import a_host_tier, a_media_request, a_scheduler
from support.fakes.runner import FakeRunner, expected_output, fake_embeddings, seen
from triptych.errors import EmbeddingUnavailableError, InternalError, NeverFitsError, QueueFullError
from triptych_engine.media.item import Bidirectional, FetchOrder
from triptych_engine.scheduling.output import SchedulerOutput, SequenceOutput
from triptych_engine.scheduling.pacer import StepPacer
from triptych_engine.scheduling.request import FinishReason, Request
from triptych_engine.scheduling.step_costs import StepCosts

# Few distinct tokens, lengths around block borders and some prompts that come again, so that prefixes collide.
PROMPTS = st.one_of(st.sampled_from([[0] * 9, [0] * 13, [0, 1] * 8]), st.lists(st.integers(0, 1), min_size=1, max_size=21))
# Few items, of which some come again, in one or two runs; rarely nothing but text.
ITEMS = [(b"a", (3,)), (b"b", (5,)), (b"c", (2, 2)), (b"d", (1,))]
MEDIA_PROMPTS = st.lists(st.one_of(st.integers(0, 1), st.sampled_from(ITEMS)), min_size=1, max_size=14)


class SchedulerMachine(RuleBasedStateMachine):
    """Requests come, run, are preempted, aborted, fail; after each rule all that is known of them must agree."""

    @initialize(
        num_blocks=st.integers(6, 24),
        max_num_seqs=st.integers(1, 6),
        budget=st.integers(6, 24),
        max_waiting=st.integers(1, 12),
        caching=st.booleans(),
        max_embeddings=st.integers(5, 12),
        bidirectional=st.sampled_from(Bidirectional),
        paced=st.booleans(),
        max_in_flight=st.sampled_from([0, 1, 1, 2]),
        num_drafts=st.sampled_from([0, 0, 1, 4]),
        num_slots=st.sampled_from([0, 4, 8, 64]),
        offers_prompts=st.booleans(),
        num_states=st.sampled_from([0, 1, 3, 12]),
        num_window_blocks=st.sampled_from([0, 0, 16, 32]),
        window=st.integers(1, 20),
    )
    def start(
        self,
        num_blocks: int,
        max_num_seqs: int,
        budget: int,
        max_waiting: int,
        caching: bool,
        max_embeddings: int,
        bidirectional: Bidirectional,
        paced: bool,
        max_in_flight: int,
        num_drafts: int,
        num_slots: int,
        offers_prompts: bool,
        num_states: int,
        num_window_blocks: int,
        window: int,
    ) -> None:
        self.max_in_flight = max_in_flight  # steps that are left to run while the next is scheduled
        self.in_flight: deque[SchedulerOutput] = deque()
        self.tier = a_host_tier(num_slots) if num_slots else None
        self.scheduler = a_scheduler(
            num_blocks,
            4,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=budget,
            max_waiting=max_waiting,
            max_model_len=64,
            num_drafts=num_drafts,
            enable_prefix_caching=caching,
            max_embeddings=max_embeddings,
            tier=self.tier,
            num_states=0 if num_drafts or num_slots else num_states,
            num_window_blocks=0 if num_slots else num_window_blocks,
            window=window,
            num_steps=64,  # they stall
            offers_prompts=offers_prompts,
            # About two prompt tokens beside each one that decodes.
            pacer=StepPacer(StepCosts(1.0, 1.0, 0.5), max_step_s=8.0, min_prompt_tokens=2) if paced else None,
        )
        self.bidirectional = bidirectional
        self.orders: dict[int, FetchOrder] = {}  # those that are neither fetched nor cancelled
        self.old_orders: list[int] = []
        self.runner = FakeRunner(tier=self.tier)
        self.runner.windows.window = window if num_window_blocks and not num_slots else 0
        self.num_blocks = num_blocks
        self.requests: dict[str, Request] = {}
        self.tokens: dict[str, list[int]] = {}
        self.ended: dict[str, FinishReason] = {}

    @rule(
        prompt=st.one_of(PROMPTS, MEDIA_PROMPTS),
        max_tokens=st.integers(0, 20),
        min_tokens=st.integers(0, 4),
        stop=st.frozensets(st.integers(0, 49), max_size=6),
        priority=st.integers(-1, 1),
        salt=st.sampled_from(["", "tenant"]),
        fails=st.integers(0, 19).map(lambda n: n == 0),
        address=st.sampled_from(["encoder:1", "encoder:2"]),
    )
    def add(
        self,
        prompt: list[int | tuple[bytes, tuple[int, ...]]],
        max_tokens: int,
        min_tokens: int,
        stop: frozenset[int],
        priority: int,
        salt: str,
        fails: bool,
        address: str,
    ) -> None:
        request = a_media_request(
            f"r{len(self.requests)}",
            prompt,
            self.bidirectional,
            address,
            max_tokens=max_tokens,
            min_tokens=min(min_tokens, max_tokens),
            stop_token_ids=stop,
        )
        request.priority, request.cache_salt, request.tenant = priority, salt, salt
        try:
            self.scheduler.add(request)
        except NeverFitsError:
            is_too_long = request.num_prompt_tokens + max(0, max_tokens - 1) > self.num_blocks * 4
            assert is_too_long or request.media.items
            return
        except QueueFullError:
            return
        self.requests[request.request_id] = request
        self.runner.salts[request.request_id] = salt
        self.tokens[request.request_id] = []
        if fails:
            self.runner.fail_requests.add(request.request_id)

    @rule()
    def step(self) -> None:
        launched = self._launch()
        while len(self.in_flight) > (self.max_in_flight if launched else 0):
            self._complete()

    @rule(steps=st.integers(2, 12))
    def several_steps(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self._abort_some(data)

    @rule(data=st.data())
    def abort_while_a_step_runs(self, data: st.DataObject) -> None:
        self._launch()
        self._abort_some(data)
        self._complete()

    @rule()
    def fail_a_step(self) -> None:
        """The oldest in flight; those behind it go on."""
        self._launch()
        self.runner.fail_next_step = RuntimeError("device lost")
        self._complete()
        self.runner.fail_next_step = None

    @rule(in_sampling=st.booleans())
    def fail_a_launch(self, in_sampling: bool) -> None:
        name = "fail_next_sample" if in_sampling else "fail_next_launch"
        setattr(self.runner, name, RuntimeError("out of memory"))
        self._launch()
        setattr(self.runner, name, None)

    @rule()
    def lose_the_executor(self) -> None:
        """With all steps in flight. Nobody ends who was not in a lost step before."""
        self._launch()
        suspects = self.scheduler._states.suspects
        may_end = {request_id for request_id, one in self.requests.items() if one in suspects or one.num_losses == 2}
        self.runner.lose()
        ended = self.scheduler.restart(self.in_flight, InternalError("lost twice"))
        self.in_flight.clear()
        assert all(output.finish_reason is FinishReason.ERROR and output.request_id in may_end for output in ended)
        assert not self.scheduler.kv_cache.pool.num_blocks - self.scheduler.kv_cache.pool.num_free_blocks
        self._note(ended)

    @rule(data=st.data())
    def fail_a_request(self, data: st.DataObject) -> None:
        if live := self.scheduler.live_request_ids:
            self.runner.fail_requests.add(data.draw(st.sampled_from(live)))

    @rule(steps=st.integers(2, 4))
    def stall(self, steps: int) -> None:
        """Results come late: several steps are launched before the first of them is asked for."""
        for _ in range(steps):
            self._launch()

    @rule(num_tokens=st.integers(1, 5))
    def bring_so_many_tokens_per_step(self, num_tokens: int) -> None:
        self.runner.num_new_tokens = lambda most: min(num_tokens, most)

    @rule()
    def forget_prefixes(self) -> None:
        self.scheduler.kv_cache.pool.reset_cache()

    @rule(data=st.data())
    def damage_a_slot(self, data: st.DataObject) -> None:
        if self.tier is not None and (slots := sorted(self.tier._ready.values())):
            slot = self.tier.bytes_of(data.draw(st.sampled_from(slots)))[0]
            if not self.runner.copies_in_flight:
                slot[data.draw(st.integers(0, 31))] ^= 1

    @rule()
    def forget_everything(self) -> None:
        self.scheduler.reset_caches()

    @rule(data=st.data(), succeeds=st.integers(0, 5).map(lambda n: n > 0))
    def embeddings_arrive(self, data: st.DataObject, succeeds: bool) -> None:
        self._fetch()
        if self.orders:
            self._deliver(data.draw(st.sampled_from(sorted(self.orders))), succeeds)

    @rule()
    def all_embeddings_arrive(self) -> None:
        self._fetch()
        for number in list(self.orders):
            self._deliver(number)

    @rule(data=st.data())
    def embeddings_arrive_too_late(self, data: st.DataObject) -> None:
        if self.old_orders:
            assert self.scheduler.arrive(data.draw(st.sampled_from(self.old_orders)), fake_embeddings(b"late", 3)) == []

    @rule()
    def fetch(self) -> None:
        self._fetch()

    def _fetch(self) -> None:
        orders, cancelled = self.scheduler.take_fetches()
        self.orders |= {order.number: order for order in orders}
        for number in cancelled:
            self.old_orders.append(number)
            del self.orders[number]

    def _deliver(self, number: int, succeeds: bool = True) -> None:
        order = self.orders.pop(number)
        self.old_orders.append(number)
        lost = EmbeddingUnavailableError("it is gone")
        self._note(self.scheduler.arrive(number, fake_embeddings(order.key, order.num_tokens) if succeeds else lost))

    def _abort_some(self, data: st.DataObject) -> None:
        live = self.scheduler.live_request_ids
        if live:
            self._note(self.scheduler.abort(data.draw(st.lists(st.sampled_from(live), unique=True, max_size=3))))

    def _launch(self) -> bool:
        while self.scheduler.needs_results_first:
            self._complete()
        scheduled = self.scheduler.schedule()
        if scheduled.is_empty:
            return False
        if self.scheduler._states.suspects:
            assert len(scheduled.num_scheduled_tokens) <= 1, "a suspect runs alone"
        self._note(self.scheduler.take_failed())
        try:
            self.runner.launch(scheduled)
            self.runner.sample(scheduled.step_id)
        except RuntimeError:
            self._note(self.scheduler.fail_step(scheduled, InternalError("step failed")))
        else:
            self.in_flight.append(scheduled)
        return True

    def _complete(self) -> None:
        if not self.in_flight:
            return
        scheduled = self.in_flight.popleft()
        try:
            result = self.runner.result(scheduled.step_id)
        except RuntimeError:
            self._note(self.scheduler.fail_step(scheduled, InternalError("step failed")))
        else:
            self._note(self.scheduler.update_from_output(scheduled, result))

    def _note(self, outputs: list[SequenceOutput]) -> None:
        for output in outputs:
            assert output.request_id not in self.ended, "an output after the last"
            assert "failed in the engine's scheduler" not in str(output.error)
            self.tokens[output.request_id] += output.token_ids
            if output.finish_reason is not None:
                self.ended[output.request_id] = output.finish_reason

    @invariant()
    def all_agree(self) -> None:
        if hasattr(self, "scheduler"):
            self.scheduler.check_integrity()
            if self.tier is not None:
                self.tier.check_integrity()

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        for _ in range(5000):
            self._fetch()
            for number in list(self.orders):
                self._deliver(number)
            if not (self.scheduler.has_work or self.in_flight):
                break
            self.step()
            self.scheduler.check_integrity()
        assert set(self.ended) == set(self.requests), "every request ends"
        assert self.scheduler.kv_cache.pool.num_free_blocks == self.num_blocks, "no block leaks"
        assert self.tier is None or not self.tier._pins, "no slot stays in use"
        assert self.runner.sequences == {}, "the runner forgets what ended"
        assert not self.scheduler.embeddings.owner_ids(), "embeddings are let go"
        for request_id, reason in self.ended.items():
            request = self.requests[request_id]
            alone = expected_output(seen(request.prompt_token_ids, request.media), request.sampling, max_model_len=64)
            generated = self.tokens[request_id]
            assert generated == (alone if reason in (FinishReason.STOP, FinishReason.LENGTH) else alone[: len(generated)])


SchedulerMachine.TestCase.settings = settings(
    max_examples=120, stateful_step_count=40, suppress_health_check=[HealthCheck.too_slow]
)
TestSchedulerMachine = SchedulerMachine.TestCase
