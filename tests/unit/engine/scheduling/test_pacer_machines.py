"""Pacing on simulated machines: whatever was measured at start, and whatever else runs on the machine."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from triptych_engine.scheduling.pacer import StepPacer
from triptych_engine.scheduling.step_costs import StepCosts

NUM_STEPS, CHANGE_STEP, CHANGE_BACK_STEP = 200, 100, 150
LEAST_TOKENS, MOST_TOKENS = 4, 512
#: How wrong a cost that was measured at start is.
WRONG = st.one_of(st.sampled_from([0.0, 1.0, math.inf, math.nan, -1.0]), st.floats(0.01, 100))


@dataclass
class Machine:
    """Its costs without load; a factor by which all steps are slower for a while; noise, and times during which nothing runs."""

    costs: StepCosts
    changed: float
    dice: random.Random

    def slower(self, step: int) -> float:
        return self.changed if CHANGE_STEP <= step < CHANGE_BACK_STEP else 1.0

    def noise(self) -> float:
        suspended = self.dice.choice([3, 10, 50]) if self.dice.random() < 0.02 else 1
        return suspended * self.dice.lognormvariate(0, 0.15)


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    fixed_s = draw(st.floats(0.001, 0.3))
    decode_s = fixed_s * draw(st.floats(0.001, 0.3))
    prompt_token_s = max(decode_s * draw(st.floats(0.2, 2.0)), fixed_s / 500)
    costs = StepCosts(fixed_s, decode_s, prompt_token_s)
    return Machine(costs, draw(st.sampled_from([1.0, 3.0, 0.33])), random.Random(draw(st.integers(0, 10**6))))


@given(machines(), st.tuples(WRONG, WRONG, WRONG), st.sampled_from([1, 4, 16, 64]), st.floats(1.2, 6), st.sampled_from([0, 3]))
def test_steps_keep_to_their_limit_and_prompts_go_on(
    machine: Machine, wrong: tuple[float, float, float], num_decoding: int, target: float, num_alone: int
):
    true, max_step_s = machine.costs, max(0.02, machine.costs.fixed_s * target)
    start = StepCosts(true.fixed_s * wrong[0], true.decode_s * wrong[1], true.prompt_token_s * wrong[2])
    pacer, lengths, computed, possible, num_small = StepPacer(start, max_step_s), [], 0, 0.0, 0
    for step in range(NUM_STEPS):
        num_tokens = 0
        if step >= num_alone:
            num_tokens = min(MOST_TOKENS, pacer.prompt_tokens(num_decoding, 1))
            assert num_tokens >= 1
            num_small += num_tokens < LEAST_TOKENS
        slower = machine.slower(step)
        decoding_s, step_s = (slower * true.step_s(num_decoding, number) for number in (0, num_tokens))
        pacer.observe(num_decoding, num_tokens, step_s * machine.noise())
        longest_s = max(max_step_s, 1.5 * decoding_s)
        lengths.append(step_s / max(longest_s, decoding_s + 2 * LEAST_TOKENS * slower * true.prompt_token_s))
        fair = (min(longest_s, 2 * decoding_s) - decoding_s) / (slower * true.prompt_token_s)
        computed, possible = computed + num_tokens, possible + max(LEAST_TOKENS, min(MOST_TOKENS, fair))
    assert num_small <= NUM_STEPS // 12 + 1, "only to measure"
    assert max(lengths) < 10  # also right after the start, and right after everything became three times as slow
    settled = [length for step, length in enumerate(lengths) if step >= 20]
    assert sum(length > 1.5 for length in settled) < 0.2 * len(settled)
    assert computed > 0.04 * possible


@pytest.mark.parametrize(
    ("costs", "num_decoding", "num_prompts"),
    [
        (StepCosts(0.0127, 0.00028, 0.00011), 4, 1),  # SmolLM2-135M on two cores with AVX-512
        (StepCosts(0.0127, 0.00028, 0.00011), 4, 32),
        (StepCosts(0.0157, 0.0029, 0.0032), 4, 4),  # with AVX2 alone
        (StepCosts(0.005, 0.0001, 0.00002), 4, 8),
    ],
)
def test_on_a_steady_machine_prompts_get_what_they_may(costs: StepCosts, num_decoding: int, num_prompts: int):
    """The probes and the bound on their speed cost prompts little."""
    pacer, max_step_s, computed, elapsed_s = StepPacer(costs, 0.07), 0.07, 0, 0.0
    for step in range(240):
        num_tokens = min(MOST_TOKENS, pacer.prompt_tokens(num_decoding, num_prompts))
        step_s = costs.step_s(num_decoding, num_tokens)
        pacer.observe(num_decoding, num_tokens, step_s)
        if step >= 24:
            computed, elapsed_s = computed + num_tokens, elapsed_s + step_s
    decoding_s = costs.step_s(num_decoding)
    wanted_s = max(
        min(max_step_s, decoding_s * max(2, 1 + num_prompts / num_decoding)), decoding_s + LEAST_TOKENS * costs.prompt_token_s
    )
    possible = min(MOST_TOKENS, (wanted_s - decoding_s) / costs.prompt_token_s)
    assert computed / elapsed_s > 0.94 * possible / costs.step_s(num_decoding, round(possible))


@pytest.mark.parametrize("seed", range(3))
def test_prompts_get_more_when_their_tokens_become_cheap_beside_streams_that_take_too_long(seed: int):
    """Only steps of different sizes show it, and none of them needs to be longer."""
    dice, max_step_s = random.Random(seed), 0.07
    dear, cheap = StepCosts(0.055, 0.009, 0.027), StepCosts(0.055, 0.009, 0.001)
    pacer, computed = StepPacer(dear, max_step_s), 0
    for step in range(700):
        costs = dear if step < 200 else cheap
        num_tokens = pacer.prompt_tokens(4, 1)
        pacer.observe(4, num_tokens, costs.step_s(4, num_tokens) * dice.lognormvariate(0, 0.1))
        computed += num_tokens if step >= 200 else 0
        assert step >= 200 or step < 20 or num_tokens <= 4
    assert computed > 3 * 500 * 4
