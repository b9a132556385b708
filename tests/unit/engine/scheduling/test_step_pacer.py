"""How a step's time is shared between requests that decode and prompts."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders.engine import a_media_request, a_request, a_scheduler
from support.fakes.runner import FakeRunner, fake_embeddings
from triptych_engine.media.item import Bidirectional
from triptych_engine.scheduling.output import SchedulerOutput
from triptych_engine.scheduling.pacer import BEGINNING_STEPS, StepPacer
from triptych_engine.scheduling.scheduler import Scheduler
from triptych_engine.scheduling.step_costs import StepCosts

#: A step of 20 ms, 1 ms more per decoding sequence, 2 ms per prompt token.
COSTS = StepCosts(0.020, 0.001, 0.002)


def step_s(num_decoding: int, num_prompt_tokens: int) -> float:
    """What a step takes by these costs."""
    return COSTS.step_s(num_decoding, num_prompt_tokens)


def a_pacer(max_step_s: float, min_prompt_tokens: int = 8, costs: StepCosts = COSTS) -> StepPacer:
    """One that has seen a step with a long prompt in it. Prompts are not limited by what no step has shown."""
    pacer = StepPacer(costs, max_step_s, min_prompt_tokens)
    pacer.observe(0, 512, step_s(0, 512))
    return pacer


def test_a_prompt_beside_streams_makes_a_step_twice_as_long():
    assert a_pacer(max_step_s=1.0).prompt_tokens(num_decoding=4, num_prompts=1) == 12  # 24 ms each


def test_more_prompts_than_streams_get_their_share():
    assert a_pacer(max_step_s=1.0).prompt_tokens(num_decoding=4, num_prompts=12) == 36  # three times 24 ms


def test_as_many_prompts_as_streams_get_half_of_the_step():
    assert a_pacer(max_step_s=1.0).prompt_tokens(num_decoding=10, num_prompts=10) == 15


def test_however_many_prompts_wait_no_step_exceeds_the_longest():
    assert a_pacer(max_step_s=0.1).prompt_tokens(num_decoding=4, num_prompts=100) == 38  # (100 - 24) / 2


def test_without_a_longest_step_prompts_get_all_that_the_budget_has():
    scheduler = a_scheduler(256, max_num_seqs=8, max_num_batched_tokens=64, pacer=a_pacer(max_step_s=math.inf))
    runner = FakeRunner()
    scheduler.add(a_request("stream", [3] * 8, max_tokens=16))
    step(scheduler, runner)
    for number in range(3):
        scheduler.add(a_request(f"r{number}", [4 + number] * 40, max_tokens=1))
    assert [sum(step(scheduler, runner).values()) for _ in range(3)] == [64, 58, 1]


def test_streams_that_have_only_begun_bear_a_longer_step():
    pacer = a_pacer(max_step_s=0.1)
    assert pacer.prompt_tokens(num_decoding=4, num_prompts=100, beginning=True) == 238  # (5 * 100 - 24) / 2
    assert pacer.prompt_tokens(num_decoding=4, num_prompts=3, beginning=True) == 36  # three times 24 ms


def test_a_single_prompt_has_no_others_to_begin_with():
    pacer = a_pacer(max_step_s=0.1)
    assert pacer.prompt_tokens(num_decoding=4, num_prompts=1, beginning=True) == 12


def prompts_beside(num_steps: int) -> int:
    """Prompt tokens of a step in which 20 prompts of 10 tokens come, after so many steps in which somebody decoded."""
    scheduler = a_scheduler(256, max_num_seqs=64, max_num_batched_tokens=512, pacer=StepPacer(COSTS, max_step_s=0.05))
    runner = FakeRunner()
    scheduler.observe(SchedulerOutput(num_scheduled_tokens={"r": 512}, num_prompt_tokens=512), step_s(0, 512))
    scheduler.add(a_request("stream", [3, 4, 5], max_tokens=40))
    for _ in range(1 + num_steps):
        step(scheduler, runner)
    for number in range(20):
        scheduler.add(a_request(f"r{number}", [3 + number] * 10, max_tokens=4))
    return scheduler.schedule().num_prompt_tokens


def test_requests_that_come_together_begin_together():
    assert prompts_beside(BEGINNING_STEPS - 1) == 114  # (5 * 50 - 21) / 2
    assert prompts_beside(BEGINNING_STEPS) == 14  # (50 - 21) / 2


def test_a_flow_of_short_requests_is_not_held_up_for_ever():
    """None of them lives for long; steps are bounded all the same, as long as there is always one."""
    scheduler = a_scheduler(256, max_num_seqs=64, max_num_batched_tokens=512, pacer=StepPacer(COSTS, max_step_s=0.05))
    runner, longest = FakeRunner(), 0
    for number in range(100):
        if number % 2 == 0:
            scheduler.add(a_request(f"short {number}", [number, 1, 2], max_tokens=5))
        if number % 20 == 10:
            scheduler.add(a_request(f"long {number}", [number] * 300, max_tokens=1))
        computed = sum(step(scheduler, runner).values())
        longest = max(longest, computed if number > BEGINNING_STEPS else 0)
    assert longest < 30  # 50 ms, with the tokens of those who decode


def test_where_decoding_alone_is_too_slow_prompts_still_go_on():
    pacer = a_pacer(max_step_s=0.001, min_prompt_tokens=1)
    assert pacer.prompt_tokens(num_decoding=100, num_prompts=100) == 1  # it may be the costs that are wrong
    for _ in range(6):
        num_tokens = pacer.prompt_tokens(num_decoding=100, num_prompts=100)
        pacer.observe(100, num_tokens, step_s(100, num_tokens))
    assert 28 <= usual(pacer, 100, 100) <= 31  # half of 120 ms


def test_where_the_fewest_tokens_take_too_long_no_step_tries_more():
    costs = StepCosts(0.055, 0.009, 0.027)  # SmolLM2-135M at 2,000 tokens, on two cores that two other processes use
    pacer = StepPacer(costs, max_step_s=0.07, min_prompt_tokens=4)
    numbers = []
    for _ in range(60):
        numbers.append(pacer.prompt_tokens(num_decoding=4, num_prompts=1))
        pacer.observe(4, numbers[-1], costs.step_s(4, numbers[-1]))
    assert set(numbers[6:]) == {1, 4}
    assert numbers.count(1) <= 5, "only to measure"


@pytest.mark.parametrize("encoding", [False, True])
def test_it_learns_that_tokens_cost_more_than_they_did(encoding: bool):
    pacer = a_pacer(max_step_s=0.1, min_prompt_tokens=1)
    for _ in range(6):
        pacer.observe(4, 0, 2 * step_s(4, 0), encoding=encoding)
    for _ in range(30):
        num_tokens = pacer.prompt_tokens(4, 100, encoding=encoding)
        pacer.observe(4, num_tokens, 2 * step_s(4, num_tokens), encoding=encoding)
    assert 12 <= usual(pacer, 4, 100, encoding=encoding) <= 14  # (100 - 48) / 4


def usual(pacer: StepPacer, num_decoding: int, num_prompts: int, *, encoding: bool = False) -> int:
    """Prompt tokens of most steps: not of one that only measures what decoding takes."""
    return max(pacer.prompt_tokens(num_decoding, num_prompts, encoding=encoding) for _ in range(2))


def test_steps_beside_an_encoder_count_apart():
    pacer = a_pacer(max_step_s=0.1)
    for _ in range(10):
        pacer.observe(4, 38, 3 * step_s(4, 38), encoding=True)
    assert usual(pacer, 4, 100) == 38
    assert usual(pacer, 4, 100, encoding=True) < 13


@pytest.mark.parametrize("num_prompt_tokens", [0, 38])
def test_a_step_during_which_the_process_stood_still_is_soon_forgotten(num_prompt_tokens: int):
    pacer = a_pacer(max_step_s=0.1)
    pacer.observe(4, num_prompt_tokens, 3600.0)
    assert usual(pacer, 4, 100) < 38
    for _ in range(8):
        num_tokens = pacer.prompt_tokens(4, 100)
        pacer.observe(4, num_tokens, step_s(4, num_tokens))
    assert 33 <= usual(pacer, 4, 100) <= 43


@pytest.mark.parametrize("step_seconds", [math.nan, math.inf, -1.0, 0.0])
def test_a_duration_that_cannot_be_changes_nothing(step_seconds: float):
    pacer = a_pacer(max_step_s=0.1)
    pacer.observe(4, 10, step_seconds)
    assert usual(pacer, 4, 100) == 38


def test_costs_of_decoding_that_were_measured_on_busy_cores_are_put_right():
    pacer = a_pacer(max_step_s=0.1, costs=StepCosts(1.0, 0.001, 0.002))
    for _ in range(10):
        pacer.observe(4, 0, step_s(4, 0))
        pacer.observe(4, 20, step_s(4, 20))
    assert 36 <= usual(pacer, 4, 100) <= 40


def test_a_price_of_zero_does_not_make_a_prompt_be_taken_whole():
    """The measurement of a start beside other services that were starting, and what a step really cost."""
    true, pacer = StepCosts(0.0127, 0.00028, 0.00011), StepPacer(StepCosts(0.0391, 0.0, 0.0), max_step_s=0.070)
    for _ in range(20):
        num_tokens = pacer.prompt_tokens(4, 1)
        pacer.observe(4, num_tokens, true.step_s(4, num_tokens))
        assert true.step_s(4, num_tokens) < 0.070


@given(
    st.builds(StepCosts, st.floats(1e-6, 1.0), st.floats(0.0, 1.0), st.floats(0.0, 1.0)),
    st.floats(1e-3, 10.0),
    st.lists(st.tuples(st.integers(0, 256), st.integers(0, 8192), st.floats(0.0, 100.0))),
    st.integers(1, 256),
    st.integers(1, 2000),
)
def test_prompts_always_go_on(
    costs: StepCosts, max_step_s: float, steps: list[tuple[int, int, float]], num_decoding: int, num_prompts: int
):
    pacer = StepPacer(costs, max_step_s)
    for step in steps:
        pacer.observe(*step)
    assert pacer.prompt_tokens(num_decoding, num_prompts) >= 4


def a_paced_scheduler(**options: int) -> Scheduler:
    return a_scheduler(pacer=a_pacer(max_step_s=0.1, min_prompt_tokens=2), **options)


def step(scheduler: Scheduler, runner: FakeRunner) -> dict[str, int]:
    scheduled = scheduler.schedule()
    scheduler.update_from_output(scheduled, runner.execute(scheduled))
    scheduler.check_integrity()
    return scheduled.num_scheduled_tokens


def a_stream(scheduler: Scheduler, runner: FakeRunner, tokens_left: int = 50) -> None:
    scheduler.add(a_request("stream", [1, 2, 3], max_tokens=1 + BEGINNING_STEPS + tokens_left))
    for _ in range(1 + BEGINNING_STEPS):
        step(scheduler, runner)


def test_a_prompt_with_nobody_beside_it_gets_the_whole_step():
    scheduler = a_paced_scheduler()
    scheduler.add(a_request("r", list(range(40))))
    assert step(scheduler, FakeRunner()) == {"r": 32}


def test_a_prompt_beside_streams_gets_its_share_until_they_end():
    scheduler, runner = a_paced_scheduler(), FakeRunner()
    a_stream(scheduler, runner, tokens_left=2)
    scheduler.add(a_request("prompt", list(range(40))))
    assert step(scheduler, runner) == {"stream": 1, "prompt": 10}  # 21 ms each
    assert step(scheduler, runner) == {"stream": 1, "prompt": 10}
    assert step(scheduler, runner) == {"prompt": 20}


@pytest.mark.parametrize("paced", [True, False])
def test_a_prompt_that_goes_first_does_not_stop_the_streams_behind_it(paced: bool):
    scheduler, runner = a_paced_scheduler() if paced else a_scheduler(), FakeRunner()
    scheduler.add(a_request("stream", [1]))
    step(scheduler, runner)
    urgent = a_request("urgent", list(range(100)))
    urgent.priority = -1
    scheduler.add(urgent)
    for _ in range(3):
        assert step(scheduler, runner)["stream"] == 1


def test_a_span_longer_than_the_share_is_computed_in_the_next_step():
    scheduler, runner = a_paced_scheduler(), FakeRunner()
    a_stream(scheduler, runner)
    scheduler.add(a_media_request("picture", [(b"cat", (20,)), 2], Bidirectional.IMAGES))
    ((order,), _) = scheduler.take_fetches()
    scheduler.arrive(order.number, fake_embeddings(order.key, order.num_tokens))
    assert step(scheduler, runner) == {"stream": 1}
    assert step(scheduler, runner) == {"stream": 1, "picture": 20}


def test_a_short_prompt_does_not_wait_for_all_the_long_ones_before_it():
    scheduler, runner = a_scheduler(max_num_batched_tokens=10), FakeRunner()
    for name in ("first", "second"):
        scheduler.add(a_request(name, list(range(40))))
    step(scheduler, runner)
    scheduler.add(a_request("short", [1, 2, 3]))
    steps = [step(scheduler, runner) for _ in range(3)]
    assert any("short" in computed for computed in steps[:2])
    assert all("first" in computed for computed in steps)


def test_the_short_ones_do_not_stop_a_long_one():
    scheduler, runner = a_scheduler(max_num_batched_tokens=4, max_num_seqs=4), FakeRunner()
    scheduler.add(a_request("long", list(range(40)), max_tokens=1))
    for number in range(60):
        scheduler.add(a_request(f"short {number}", [number, 1, 2, 3], max_tokens=1))
        step(scheduler, runner)
    assert "long" not in scheduler.live_request_ids


def test_nobody_takes_the_blocks_that_the_first_in_line_waits_for():
    scheduler, runner = a_scheduler(num_blocks=16, max_num_batched_tokens=64), FakeRunner()  # 16 blocks of 4 tokens
    scheduler.add(a_request("running", list(range(20)), max_tokens=12))
    step(scheduler, runner)
    scheduler.add(a_request("long", [9] * 48))
    for number in range(30):
        scheduler.add(a_request(f"short {number}", [number, 1, 2], max_tokens=4))
    while "running" in scheduler.live_request_ids:
        assert set(step(scheduler, runner)) == {"running"}
    assert "long" in {**step(scheduler, runner), **step(scheduler, runner)}


def test_priority_comes_before_length():
    scheduler, runner = a_scheduler(max_num_batched_tokens=10), FakeRunner()
    urgent = a_request("urgent", list(range(40)))
    urgent.priority = -1
    scheduler.add(urgent)
    scheduler.add(a_request("short", [1]))
    assert [list(step(scheduler, runner)) for _ in range(3)] == [["urgent"]] * 3


@pytest.mark.parametrize("others", [[("dog", 18)], [("dog", 18), ("owl", 16)], []])
def test_spans_that_wait_do_not_take_each_others_turn(others: list[tuple[str, int]]):
    scheduler, runner = a_paced_scheduler(num_blocks=128), FakeRunner()
    a_stream(scheduler, runner, tokens_left=100)
    names = [("cat", 20), *others]
    for name, length in names:
        scheduler.add(a_media_request(name, [(name.encode(), (length,)), 2], Bidirectional.PROMPT, max_tokens=1))
    scheduler.add(a_request("text", list(range(30)), max_tokens=1))
    for order in scheduler.take_fetches()[0]:
        scheduler.arrive(order.number, fake_embeddings(order.key, order.num_tokens))
    for _ in range(4 * len(names) + 12):
        assert step(scheduler, runner)["stream"] == 1
    assert scheduler.live_request_ids == ["stream"]
