"""Whatever happens in whatever order: no block leaks or is used twice, everyone finishes, text does not depend on company."""

from __future__ import annotations

from builders_engine import a_request, a_scheduler
from fakes.runner import FakeRunner, expected_output
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from triptych_common.errors import InternalError, NeverFitsError, QueueFullError
from triptych_engine.output import SchedulerOutput, SequenceOutput
from triptych_engine.request import FinishReason, Request

# Few distinct tokens, lengths around block borders and some prompts that come again, so that prefixes collide.
PROMPTS = st.one_of(st.sampled_from([[0] * 9, [0] * 13, [0, 1] * 8]), st.lists(st.integers(0, 1), min_size=1, max_size=21))


class SchedulerMachine(RuleBasedStateMachine):
    """Requests come, run, are preempted, aborted, fail; after each rule the books must balance."""

    @initialize(
        num_blocks=st.integers(6, 24),
        max_num_seqs=st.integers(1, 6),
        budget=st.integers(6, 24),
        max_waiting=st.integers(1, 12),
        caching=st.booleans(),
    )
    def start(self, num_blocks: int, max_num_seqs: int, budget: int, max_waiting: int, caching: bool) -> None:
        self.scheduler = a_scheduler(
            num_blocks,
            4,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=budget,
            max_waiting=max_waiting,
            max_model_len=64,
            enable_prefix_caching=caching,
        )
        self.runner = FakeRunner()
        self.num_blocks = num_blocks
        self.requests: dict[str, Request] = {}
        self.tokens: dict[str, list[int]] = {}
        self.ended: dict[str, FinishReason] = {}

    @rule(
        prompt=PROMPTS,
        max_tokens=st.integers(0, 20),
        min_tokens=st.integers(0, 4),
        stop=st.frozensets(st.integers(0, 49), max_size=6),
        priority=st.integers(-1, 1),
        salt=st.sampled_from(["", "tenant"]),
        fails=st.integers(0, 19).map(lambda n: n == 0),
    )
    def add(
        self, prompt: list[int], max_tokens: int, min_tokens: int, stop: frozenset[int], priority: int, salt: str, fails: bool
    ) -> None:
        request = a_request(
            f"r{len(self.requests)}", prompt, max_tokens=max_tokens, min_tokens=min(min_tokens, max_tokens), stop_token_ids=stop
        )
        request.priority, request.cache_salt = priority, salt
        try:
            self.scheduler.add(request)
        except NeverFitsError:
            assert len(prompt) + max(0, max_tokens - 1) > self.num_blocks * 4
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
        self._finish_step(self.scheduler.schedule())

    @rule(steps=st.integers(2, 12))
    def several_steps(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self._abort_some(data)

    @rule(data=st.data())
    def abort_while_a_step_runs(self, data: st.DataObject) -> None:
        scheduled = self.scheduler.schedule()
        self._abort_some(data)
        self._finish_step(scheduled)

    @rule()
    def fail_a_step(self) -> None:
        scheduled = self.scheduler.schedule()
        if not scheduled.num_scheduled_tokens:
            self._finish_step(scheduled)
            return
        self.runner.fail_next_step = RuntimeError("device lost")
        try:
            self.runner.execute(scheduled)
        except RuntimeError:
            self._note(self.scheduler.fail(list(scheduled.num_scheduled_tokens), InternalError("step failed")))

    @rule()
    def forget_prefixes(self) -> None:
        self.scheduler.kv_cache.pool.reset_cache()

    def _abort_some(self, data: st.DataObject) -> None:
        live = self.scheduler.live_request_ids
        if live:
            self._note(self.scheduler.abort(data.draw(st.lists(st.sampled_from(live), unique=True, max_size=3))))

    def _finish_step(self, scheduled: SchedulerOutput) -> None:
        self._note(self.scheduler.update(scheduled, self.runner.execute(scheduled)))

    def _note(self, outputs: list[SequenceOutput]) -> None:
        for output in outputs:
            assert output.request_id not in self.ended, "an output after the last"
            self.tokens[output.request_id] += output.token_ids
            if output.finish_reason is not None:
                self.ended[output.request_id] = output.finish_reason

    @invariant()
    def books_balance(self) -> None:
        if hasattr(self, "scheduler"):
            self.scheduler.check_integrity()

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        for _ in range(5000):
            if not self.scheduler.has_work:
                break
            self.step()
            self.scheduler.check_integrity()
        assert set(self.ended) == set(self.requests), "every request ends"
        assert self.scheduler.kv_cache.pool.num_free_blocks == self.num_blocks, "no block leaks"
        assert self.runner.sequences == {}, "the runner forgets what ended"
        for request_id, reason in self.ended.items():
            request = self.requests[request_id]
            alone = expected_output(request.prompt_token_ids, request.sampling, max_model_len=64)
            generated = self.tokens[request_id]
            assert generated == (alone if reason in (FinishReason.STOP, FinishReason.LENGTH) else alone[: len(generated)])


SchedulerMachine.TestCase.settings = settings(
    max_examples=120, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestSchedulerMachine = SchedulerMachine.TestCase
