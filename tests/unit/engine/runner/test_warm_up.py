"""What the warm-up measures, on a machine whose costs are known: the clock stands still except in steps."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from triptych_engine.runner.warm_up import WarmUp
from triptych_engine.scheduling.output import SchedulerOutput, StepResult
from triptych_engine.scheduling.step_costs import StepCosts

TRUE = StepCosts(0.0127, 0.00028, 0.00011)
#: Seconds to admit a sequence.
ADMISSION_S = 0.01


class Machine:
    """A runner whose steps take what `costs` say, times the load at the time of the step."""

    def __init__(self, costs: StepCosts = TRUE, load: Callable[[float], float] = lambda now_s: 1.0) -> None:
        self._costs, self._load = costs, load
        self.now_s, self.num_steps, self._known = 0.0, 0, set[str]()

    def execute(self, scheduled: SchedulerOutput) -> StepResult:
        self._known |= {sequence.request_id for sequence in scheduled.new}
        self.now_s += ADMISSION_S * len(scheduled.new)
        numbers = scheduled.num_scheduled_tokens
        assert set(numbers) <= self._known
        if numbers:
            self.num_steps += 1
            num_prompt_tokens = sum(number for number in numbers.values() if number > 1)
            num_decoding = sum(number == 1 for number in numbers.values())
            self.now_s += self._costs.step_s(num_decoding, num_prompt_tokens) * self._load(self.now_s)
        self._known -= set(scheduled.dropped)
        return StepResult()

    def measured(self, max_tokens: int = 512, max_num_seqs: int = 256) -> StepCosts:
        costs = WarmUp(self, 16, max_tokens, max_num_seqs, clock=lambda: self.now_s).run(largest=False)
        assert not self._known
        return costs


def test_the_costs_are_those_of_sequences_that_were_admitted_before():
    costs = Machine().measured()
    assert costs.fixed_s == pytest.approx(TRUE.fixed_s, rel=0.01)
    assert costs.decode_s == pytest.approx(TRUE.decode_s, rel=0.01)
    assert costs.prompt_token_s == pytest.approx(TRUE.prompt_token_s, rel=0.05)


def test_a_service_that_starts_meanwhile_does_not_make_prompts_free():
    """While another service starts, all steps take three times as long. Measured one after the other, decoding alone would do."""
    machine = Machine(load=lambda now_s: 3.0 if now_s < 1.7 else 1.0)
    costs = machine.measured()
    assert TRUE.prompt_token_s / 2 < costs.prompt_token_s < 4 * TRUE.prompt_token_s


@given(st.integers(0, 1000))
def test_noise_does_not_make_anything_free(seed: int):
    dice = random.Random(seed)
    costs = Machine(load=lambda now_s: dice.choice([1.0, 1.1, 1.3, 5.0])).measured()
    assert costs.prompt_token_s >= TRUE.step_s(1) / 1024
    assert costs.fixed_s > 0


def test_a_quiet_machine_is_measured_in_few_steps():
    machine = Machine()
    machine.measured()
    assert machine.num_steps <= 15


def test_a_slow_model_is_measured_for_no_longer_than_it_must():
    dice = random.Random(0)
    machine = Machine(StepCosts(1.0, 0.02, 0.05), load=lambda now_s: dice.uniform(1, 3))
    machine.measured()
    assert machine.num_steps <= 10


@pytest.mark.parametrize(("max_tokens", "max_num_seqs"), [(1, 1), (1, 64), (2, 1), (100, 3)])
def test_the_smallest_engine_can_be_measured(max_tokens: int, max_num_seqs: int):
    costs = Machine().measured(max_tokens, max_num_seqs)
    assert 0 < costs.prompt_token_s <= costs.fixed_s + costs.decode_s
