"""Prefixes that the KV cache evicts are kept in the second tier, and loaded from it where a prompt begins with them."""

from __future__ import annotations

from collections import deque
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.builders.engine import a_host_tier, a_request, a_scheduler
from support.fakes.runner import FakeRunner, expected_output
from triptych.errors import InternalError
from triptych_engine.core import EngineCore
from triptych_engine.kv_offload.host_tier import HostTier
from triptych_engine.scheduling.cache import block_copies
from triptych_engine.scheduling.output import SchedulerOutput, SequenceOutput
from triptych_engine.scheduling.pacer import StepPacer
from triptych_engine.scheduling.request import FinishReason, Request
from triptych_engine.scheduling.scheduler import Scheduler
from triptych_engine.scheduling.step_costs import StepCosts

LONG = [n % 50 for n in range(33)]  # eight blocks of four, and a token
OTHER = [(7 * n + 3) % 50 for n in range(41)]


class Run:
    """A scheduler with a tier, and a runner that checks whose keys it reads."""

    def __init__(
        self, num_blocks: int = 12, num_slots: int = 64, *, max_in_flight: int = 0, slot_bytes: int = 1 << 10, token_s: float = 1.0
    ) -> None:
        self.tier: HostTier = a_host_tier(num_slots, slot_bytes)
        pacer = StepPacer(StepCosts(token_s, token_s, token_s / 2), max_step_s=8 * token_s, min_prompt_tokens=2)
        self.scheduler: Scheduler = a_scheduler(num_blocks, tier=self.tier, pacer=pacer)
        self.runner = FakeRunner(tier=self.tier)
        self.steps: list[SchedulerOutput] = []
        self._max_in_flight, self._in_flight = max_in_flight, deque[SchedulerOutput]()

    def step(self) -> list[SequenceOutput]:
        outputs = self._complete(0) if self.scheduler.needs_results_first else []
        scheduled = self.scheduler.schedule()
        if not scheduled.is_empty:
            self.steps.append(scheduled)
            self.runner.launch(scheduled)
            self.runner.sample(scheduled.step_id)
            self._in_flight.append(scheduled)
        outputs += self._complete(0 if scheduled.is_empty else self._max_in_flight)
        self.scheduler.check_integrity()
        self.tier.check_integrity()
        return outputs

    def _complete(self, num_left: int) -> list[SequenceOutput]:
        outputs = []
        while len(self._in_flight) > num_left:
            step = self._in_flight.popleft()
            outputs += self.scheduler.update_from_output(step, self.runner.result(step.step_id))
        return outputs

    def text(self, *requests: Request) -> list[list[int]]:
        """The outputs of requests that come at once, each checked."""
        texts: dict[str, list[int]] = {request.request_id: [] for request in requests}
        for request in requests:
            self.scheduler.add(request)
        while self.scheduler.has_work or self._in_flight:
            for output in self.step():
                texts[output.request_id] += output.token_ids
        for request in requests:
            assert texts[request.request_id] == expected_output(request.prompt_token_ids, request.sampling)
        return list(texts.values())

    @property
    def num_loaded(self) -> int:
        return sum(len(step.loads) for step in self.steps)


@pytest.mark.parametrize("max_in_flight", [0, 1])
def test_an_evicted_prefix_is_loaded_instead_of_computed(max_in_flight: int):
    run = Run(max_in_flight=max_in_flight)
    run.text(a_request("first", LONG, max_tokens=3))
    run.text(a_request("other", OTHER, max_tokens=3))  # takes all but one of the blocks
    run.steps.clear()
    again = a_request("again", LONG, max_tokens=3)
    run.text(again)
    assert run.num_loaded + again.num_cached_tokens // 4 >= 8
    assert run.num_loaded >= 6
    assert again.num_cached_tokens == 32
    assert sum(step.num_prompt_tokens for step in run.steps) <= 4
    assert run.tier.statistics.num_loaded == run.num_loaded


def test_without_a_tier_nothing_is_copied():
    scheduler, runner = a_scheduler(12), FakeRunner()
    for name, prompt in (("first", LONG), ("other", OTHER), ("again", LONG)):
        scheduler.add(a_request(name, prompt, max_tokens=2))
        while scheduler.has_work:
            step = scheduler.schedule()
            assert not step.stores
            assert not step.loads
            scheduler.update_from_output(step, runner.execute(step))


def test_equal_prompts_wait_for_one_load():
    run = Run(24)
    run.text(a_request("first", LONG, max_tokens=3))
    run.text(a_request("other", OTHER, max_tokens=3), a_request("more", OTHER[::-1], max_tokens=3))
    run.steps.clear()
    requests = [a_request(f"again{n}", LONG, max_tokens=3) for n in range(3)]
    run.text(*requests)
    assert 0 < run.num_loaded <= 8
    assert [one.num_cached_tokens for one in requests] == [32, 32, 32]


def test_a_damaged_block_and_what_follows_it_are_computed():
    run = Run()
    first = a_request("first", LONG, max_tokens=3)
    run.text(first)
    run.text(a_request("other", OTHER, max_tokens=3))
    slot = run.tier._ready[first.block_hashes[2]]
    run.tier.bytes_of(slot)[0][5] ^= 1
    again = a_request("again", LONG, max_tokens=3)
    run.text(again)
    assert run.tier.statistics.num_corrupt == 1
    assert again.num_cached_tokens == 8
    assert not run.tier.num_found(first.block_hashes[2:])


@pytest.mark.parametrize(("token_s", "most"), [(0.02, 2), (0.06, 6)])
def test_streams_go_on_while_a_long_prefix_is_loaded_in_parts(token_s: float, most: int):
    """What a step loads beside streams, and stores for that, is a share of their time: two or six blocks of 4 MiB."""
    run = Run(40, 32, slot_bytes=4 << 20, token_s=token_s)
    run.text(a_request("first", LONG, max_tokens=3))
    run.text(*(a_request(f"other{n}", [n, *OTHER], max_tokens=3) for n in range(4)))
    run.scheduler.add(a_request("stream", [1, 2], max_tokens=30))
    run.step()
    run.scheduler.add(a_request("again", LONG, max_tokens=1))
    run.steps.clear()
    num_tokens = 0
    while run.num_loaded < 8:
        num_tokens += sum(len(output.token_ids) for output in run.step())
        assert all(step.num_decoding == 1 and len(step.loads) + len(step.stores) <= most + 1 for step in run.steps)
    assert num_tokens >= 16 / most - 1
    # What was evicted for the load was stored in parts, too.
    assert sum(len(step.stores) for step in run.steps) >= 7
    assert not run.tier._pending


def test_what_was_evicted_for_a_load_that_ends_early_is_given_up():
    run = Run(40, 32, slot_bytes=4 << 20, token_s=0.02)
    run.text(a_request("first", LONG, max_tokens=3))
    run.text(*(a_request(f"other{n}", [n, *OTHER], max_tokens=3) for n in range(4)))
    run.scheduler.add(a_request("stream", [1, 2], max_tokens=30))
    run.step()
    run.scheduler.add(a_request("again", LONG, max_tokens=1))
    run.step()
    copies = run.scheduler.kv_cache.copies
    assert copies is not None
    assert copies._loads[0].evicted
    run.scheduler.reset_caches()
    while run.scheduler.has_work:
        run.step()
    assert not run.tier._pending
    assert not run.tier._pins


@settings(max_examples=80, deadline=None)
@example([(0, 0, "abort"), (3, 0, ""), (1, 8, ""), (3, 0, ""), (0, 5, ""), (1, 9, "damage")], 18, 24, 1)
@given(
    comings=st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 9), st.sampled_from(["", "", "", "damage", "reset", "abort"])),
        min_size=6,
        max_size=16,
    ),
    num_blocks=st.integers(16, 24),
    num_slots=st.sampled_from([8, 24, 64]),
    max_in_flight=st.integers(0, 1),
)
def test_texts_are_right_whatever_happens_while_blocks_are_copied(
    comings: list[tuple[int, int, str]], num_blocks: int, num_slots: int, max_in_flight: int
):
    """Prompts of 8 blocks, of which one to three are copied in a step."""
    run = Run(num_blocks, num_slots, max_in_flight=max_in_flight)
    requests: dict[str, Request] = {}
    texts: dict[str, list[int]] = {}

    def step() -> None:
        for output in run.step():
            texts[output.request_id] += output.token_ids

    with mock.patch.multiple(block_copies, _BYTES_ALONE=3 << 10, _BYTES_PER_S=1e4):
        for count, (number, num_steps, event) in enumerate(comings):
            name = f"r{count}"
            requests[name], texts[name] = a_request(name, [number, *LONG], max_tokens=5), []
            run.scheduler.add(requests[name])
            for _ in range(num_steps):
                step()
            if event == "damage":
                # What a step in flight loads was checked when that step was planned.
                issued = {slot for load in run.scheduler.kv_cache.copies._loads for slot in load.slots[: load.num_issued]}
                for slot in [slot for slot in run.tier._ready.values() if slot not in issued][:1]:
                    run.tier.bytes_of(slot)[0][3] ^= 1
            elif event == "reset":
                run.scheduler.reset_caches()
            elif event == "abort":
                run.scheduler.abort([name])
        while run.scheduler.has_work or run._in_flight:
            step()
    for name, request in requests.items():
        whole = expected_output(request.prompt_token_ids, request.sampling)
        assert texts[name] == (whole[: len(texts[name])] if request.finish_reason is FinishReason.ABORT else whole)
    assert not run.tier._pins
    assert not run.tier._pending
    assert run.scheduler.kv_cache.pool.num_free_blocks == num_blocks


def test_a_preempted_request_is_loaded_not_computed_again():
    run = Run(14)
    prompts = [[n, *LONG[:17]] for n in (1, 2)]
    requests = [a_request(f"r{n}", prompt, max_tokens=20) for n, prompt in enumerate(prompts)]
    run.text(*requests)
    assert run.scheduler.num_preemptions
    assert run.num_loaded


@pytest.mark.parametrize("when", ["the step with the load fails", "the worker is lost"])
def test_a_load_that_fails_is_computed(when: str):
    run = Run()
    run.text(a_request("first", LONG, max_tokens=3))
    run.text(a_request("other", OTHER, max_tokens=3))
    run.scheduler.add(a_request("again", LONG, max_tokens=3))
    step = run.scheduler.schedule()
    assert step.loads
    if when == "the worker is lost":
        run.runner.lose()
        assert run.scheduler.restart([step], InternalError("lost")) == []
    else:
        assert run.scheduler.fail_step(step, InternalError("failed")) == []
    run.scheduler.check_integrity()
    run.tier.check_integrity()
    text = []
    while run.scheduler.has_work:
        text += [token_id for output in run.step() for token_id in output.token_ids]
    assert text == expected_output(LONG, a_request("x", LONG, max_tokens=3).sampling)
    assert not run.tier._pins


def test_what_is_cleared_is_not_found():
    run = Run()
    run.text(a_request("first", LONG, max_tokens=3))
    run.text(a_request("other", OTHER, max_tokens=3))
    run.scheduler.reset_caches()
    run.steps.clear()
    run.text(a_request("again", LONG, max_tokens=3))
    assert not run.num_loaded


def test_requests_of_another_salt_find_nothing():
    run = Run()
    run.text(a_request("first", LONG, max_tokens=3))
    run.text(a_request("other", OTHER, max_tokens=3))
    again = a_request("again", LONG, max_tokens=3)
    again.cache_salt = run.runner.salts["again"] = "another tenant"
    run.text(again)
    assert not run.num_loaded


def offering(**options: int) -> Run:
    run = Run(**options)
    run.scheduler.kv_cache.offers_prompts = True
    return run


def test_blocks_of_a_prompt_are_there_for_others_with_its_first_token():
    run = offering(num_blocks=24)
    request = a_request("first", LONG, max_tokens=9)
    run.scheduler.add(request)
    while not any(output.token_ids for output in run.step()):
        assert run.tier.num_found(request.block_hashes) == request.num_computed_tokens // 4
    assert run.tier.num_found(request.block_hashes) == 8
    while run.scheduler.has_work:
        run.step()
    assert run.tier.num_used == 8, "those of the output are not offered"


def test_cached_blocks_are_offered_too():
    run = offering(num_blocks=24)
    run.text(a_request("first", LONG, max_tokens=1))
    run.tier.clear()
    again = a_request("again", LONG, max_tokens=1)
    run.text(again)
    assert again.num_cached_tokens == 32
    assert run.tier.num_found(again.block_hashes) == 8


def test_blocks_of_a_request_that_failed_are_not_offered():
    run = offering(num_blocks=24)
    run.runner.fail_requests.add("bad")
    run.scheduler.add(a_request("bad", LONG[:13], max_tokens=3))
    outputs = run.step()
    assert outputs[0].finish_reason is FinishReason.ERROR
    assert not run.tier.num_used


def test_blocks_are_not_offered_if_an_earlier_step_of_their_prompt_failed():
    """The next step was launched before that was known, and computed with keys that are not there."""
    run = offering(num_blocks=24)
    prompt = [*LONG, *OTHER[:31]]
    run.scheduler.add(a_request("first", prompt, max_tokens=3))
    steps = [run.scheduler.schedule() for _ in range(2)]
    assert all(step.offers for step in steps)
    for step in steps:
        run.runner.launch(step)
        run.runner.sample(step.step_id)
    run.runner.fail_next_step = RuntimeError("device lost")
    with pytest.raises(RuntimeError):
        run.runner.result(steps[0].step_id)
    run.scheduler.fail_step(steps[0], InternalError("failed"))
    run.scheduler.update_from_output(steps[1], run.runner.result(steps[1].step_id))
    assert not run.tier.num_used
    run.text(a_request("beginning", LONG, max_tokens=2))
    run.text(a_request("again", prompt, max_tokens=2))


class Asleep:
    """A step loop over a run that has begun to load a prefix in several steps."""

    def __init__(self) -> None:
        self.run = Run(40, 12, slot_bytes=40 << 20)  # one block fits into what a step loads
        self.run.text(a_request("first", LONG, max_tokens=3))
        self.run.text(*(a_request(f"other{n}", [n, *OTHER], max_tokens=3) for n in range(4)))
        self.core = EngineCore(self.run.scheduler, self.run.runner, lambda step, outputs, load: None)
        self.core._add(a_request("again", LONG, max_tokens=3))
        self.core.step()
        assert self.run.scheduler.kv_cache.copies.has_work


def test_a_load_ends_when_the_engine_falls_asleep():
    asleep = Asleep()
    asleep.core._sleep(False)
    scheduler, tier = asleep.run.scheduler, asleep.run.tier
    assert not scheduler.has_work, "nothing is computed while it sleeps"
    assert (tier.num_used, tier._pins) == (0, {})
    assert scheduler.kv_cache.pool.num_free_blocks == 40
    asleep.core._wake_up()
    asleep.run.runner.cache_allocated = True
    again = a_request("again", LONG, max_tokens=3)
    asleep.run.text(again)
    assert again.num_cached_tokens == 0


def test_a_load_that_is_in_flight_when_all_is_cleared_brings_nothing():
    asleep = Asleep()
    scheduled = asleep.run.scheduler.schedule()
    assert scheduled.loads
    asleep.run.runner.launch(scheduled)
    asleep.run.runner.sample(scheduled.step_id)
    asleep.run.scheduler.reset_caches()
    asleep.run.scheduler.update_from_output(scheduled, asleep.run.runner.result(scheduled.step_id))
    assert not asleep.run.scheduler.kv_cache.pool._block_of
    assert asleep.run.tier.num_used == 0
    asleep.run.scheduler.abort(["again"])
    asleep.run.text(a_request("more", LONG, max_tokens=3))


def test_blocks_that_others_took_out_of_the_tier_in_the_last_moment_are_computed(monkeypatch: pytest.MonkeyPatch):
    run = Run()
    run.text(a_request("first", LONG, max_tokens=3))
    run.text(a_request("other", OTHER, max_tokens=3))
    monkeypatch.setattr(run.tier, "pin", lambda hashes: [])
    run.text(a_request("again", LONG, max_tokens=3))
    assert not run.num_loaded
