"""How a step's time is shared between requests that decode and prompts."""

from __future__ import annotations

import pytest
from builders_engine import a_media_request, a_request, a_scheduler
from fakes.runner import FakeRunner, fake_embeddings
from hypothesis import given
from hypothesis import strategies as st
from triptych_engine.media import Bidirectional
from triptych_engine.scheduler import Scheduler
from triptych_engine.step_pacer import StepCosts, StepPacer

#: A step of 20 ms, 1 ms more per decoding sequence, 2 ms per prompt token.
COSTS = StepCosts(0.020, 0.001, 0.002)


def test_one_prompt_beside_four_streams_makes_a_step_a_quarter_longer():
    pacer = StepPacer(COSTS, max_step_s=1.0, min_prompt_tokens=1)
    assert pacer.prompt_tokens(num_decoding=4, num_prompts=1) == 3  # 24 ms of decoding, 6 ms for the prompt


def test_as_many_prompts_as_streams_get_half_of_the_step():
    assert StepPacer(COSTS, max_step_s=1.0).prompt_tokens(num_decoding=10, num_prompts=10) == 16  # 15 would be 30 ms


def test_however_many_prompts_wait_no_step_exceeds_the_longest():
    assert StepPacer(COSTS, max_step_s=0.1).prompt_tokens(num_decoding=4, num_prompts=100) == 38  # (100 - 24) / 2


def test_where_decoding_alone_is_too_slow_prompts_still_go_on():
    pacer = StepPacer(COSTS, max_step_s=0.001, min_prompt_tokens=1)
    assert pacer.prompt_tokens(num_decoding=100, num_prompts=100) == 15  # a quarter of 120 ms


def test_it_learns_that_tokens_cost_more_than_they_did():
    pacer = StepPacer(COSTS, max_step_s=0.1, min_prompt_tokens=1)
    before = pacer.prompt_tokens(4, 100)
    for _ in range(50):
        pacer.observe(4, 10, 2 * COSTS.step_s(4, 10))
    assert pacer.prompt_tokens(4, 100) == 13 < before  # (100 - 48) / 4


def test_one_step_during_which_the_process_stood_still_changes_little():
    pacer = StepPacer(COSTS, max_step_s=0.1)
    pacer.observe(4, 10, 3600.0)
    for _ in range(10):
        pacer.observe(4, 10, COSTS.step_s(4, 10))
    assert pacer.prompt_tokens(4, 100) >= 30


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
    assert pacer.prompt_tokens(num_decoding, num_prompts) >= 16


def a_paced_scheduler(**options: int) -> Scheduler:
    return a_scheduler(pacer=StepPacer(COSTS, max_step_s=0.1, min_prompt_tokens=2), **options)


def step(scheduler: Scheduler, runner: FakeRunner) -> dict[str, int]:
    scheduled = scheduler.schedule()
    scheduler.update(scheduled, runner.execute(scheduled))
    scheduler.check_integrity()
    return scheduled.num_scheduled_tokens


def test_a_prompt_with_nobody_beside_it_gets_the_whole_step():
    scheduler = a_paced_scheduler()
    scheduler.add(a_request("r", list(range(40))))
    assert step(scheduler, FakeRunner()) == {"r": 32}


def test_a_prompt_beside_streams_gets_its_share_until_they_end():
    scheduler, runner = a_paced_scheduler(), FakeRunner()
    scheduler.add(a_request("stream", [1, 2, 3], max_tokens=3))
    step(scheduler, runner)
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
    scheduler.add(a_request("stream", [1, 2, 3]))
    step(scheduler, runner)
    scheduler.add(a_media_request("picture", [(b"cat", (20,)), 2], Bidirectional.IMAGES))
    ((order,), _) = scheduler.take_fetches()
    scheduler.arrive(order.number, fake_embeddings(order.key, order.num_tokens))
    assert step(scheduler, runner) == {"stream": 1}
    assert step(scheduler, runner) == {"stream": 1, "picture": 20}
