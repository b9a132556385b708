"""What a step costs, and how it is fitted to measured steps."""

from __future__ import annotations

import math
import random
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from triptych_engine.executor.simulated import SimulatedCosts, SimulatedEngine
from triptych_engine.scheduling.step_costs import StepCosts

from benchmarks.engine.costs import fit
from benchmarks.steps import write_costs


def a_measured_step(
    costs: SimulatedCosts, num_seqs: int = 0, context: int = 0, num_tokens: int = 0, before: int = 0
) -> dict[str, Any]:
    step_s = costs.step_s(num_seqs, num_tokens) + num_seqs * costs.attention_s(1, context)
    if num_tokens:
        step_s += costs.attention_s(num_tokens, before)
    return {"num_seqs": num_seqs, "context": context, "num_tokens": num_tokens, "num_before": before, "step_ms": 1e3 * step_s}


def test_costs_are_fitted_to_measured_steps() -> None:
    curve = ((1, 0.01), (8, 0.01), (16, 0.012), (64, 0.03), (512, 0.25))
    costs = SimulatedCosts(StepCosts(0.01, 0.0005, 0.0004), curve, 2e-4, 1e-6, 3e-7)
    runs = [a_measured_step(costs, num_seqs, 128) for num_seqs in (1, 8, 16, 64)]
    runs += [a_measured_step(costs, 8, context) for context in (512, 4096)]
    runs += [a_measured_step(costs, num_tokens=num_tokens) for num_tokens in (16, 64, 512)]
    runs += [a_measured_step(costs, num_seqs, 200, 30, 500) for num_seqs in (1, 8)]
    prompt_s = 8 * costs.step_s(0, 512) + costs.attention_s(4096, 0)
    found, error = fit(runs, [{"num_steps": 8, "prompt_tokens": 4096, "seconds": prompt_s}])
    assert error < 1e-6
    assert dict(found.curve) == pytest.approx(dict(curve))
    assert (found.sequence_s, found.context_s, found.pair_s) == pytest.approx((2e-4, 1e-6, 3e-7))
    # The straight line is between few tokens, which it makes too expensive, and many.
    assert found.steps.step_s(1) == pytest.approx(costs.step_s(1, 0), rel=0.3)
    assert found.steps.prompt_token_s == pytest.approx(0.25 / 512, rel=0.3)
    # Steps that get shorter as contexts grow are noise.
    noisy = [one | {"step_ms": one["step_ms"] * (1 - one["context"] / 5000)} for one in runs]
    assert fit(noisy)[0].context_s == 0


def test_the_fit_finds_a_straight_line() -> None:
    line = SimulatedCosts(StepCosts(0.01, 0.0005, 0.0004), (), 0.0, 1e-6, 3e-7)
    runs = [a_measured_step(line, num_seqs, 128) for num_seqs in (1, 8, 64)] + [a_measured_step(line, 8, 512)]
    runs += [a_measured_step(line, num_tokens=num_tokens) for num_tokens in (16, 64, 512)] + [
        a_measured_step(line, 8, 128, 30, 100)
    ]
    assert asdict(fit(runs)[0].steps) == pytest.approx(asdict(line.steps), rel=1e-3)


def test_a_step_of_any_size_has_a_time() -> None:
    costs = SimulatedCosts(StepCosts(1.0, 1.0, 1.0), ((2, 0.01), (4, 0.02), (8, 0.03)), 0.001)
    seconds = [costs.step_s(0, num_tokens) for num_tokens in (1, 2, 3, 4, 6, 8, 16)]
    assert seconds == pytest.approx([0.01, 0.01, 0.015, 0.02, 0.025, 0.03, 0.05])
    assert costs.step_s(3, 1) == pytest.approx(0.023)


@pytest.mark.parametrize("noise", [0.0, 0.03, 0.1, 0.3])
@pytest.mark.parametrize("outliers", [0, 8])
def test_the_noise_of_mixed_steps_is_found_whatever_a_few_pauses_add(noise: float, outliers: int) -> None:
    rng = random.Random(3)
    curve = ((1, 0.01), (8, 0.012), (16, 0.02), (512, 0.3))
    costs = SimulatedCosts(StepCosts(0.01, 0.0005, 0.0004), curve, 2e-4, 1e-6, 3e-7, noise)
    runs = [a_measured_step(costs, num_seqs, 128) for num_seqs in (1, 8)]
    runs += [a_measured_step(costs, num_tokens=num_tokens, before=1024) for num_tokens in (16, 512)]
    # As the pacer's: runs of equal steps, each further in its prompt. The curve fits one of the kinds badly.
    mixed = [
        a_measured_step(costs, num_seqs, 128 + step, num_tokens, step * num_tokens)
        for num_seqs, num_tokens in ((1, 8), (1, 17), (8, 15), (8, 20))
        for step in range(100)
    ]
    for number, step in enumerate(mixed):
        step["step_ms"] *= costs.noise(rng) * (1.15 if step["num_tokens"] == 17 else 1)
        if number < outliers:
            step["step_ms"] *= rng.uniform(2, 5)
    found = fit(runs + mixed)[0].step_noise
    assert found == pytest.approx(noise, rel=0.15, abs=0.006)
    assert fit(runs + mixed[::50])[0].step_noise == 0, "of two steps of a kind"


def test_the_factor_of_the_noise_is_one_on_average() -> None:
    costs, rng = replace(SimulatedCosts(StepCosts(1.0, 1.0, 1.0)), step_noise=0.3), random.Random(0)
    factors = [costs.noise(rng) for _ in range(40_000)]
    assert sum(factors) / len(factors) == pytest.approx(1, abs=4 * 0.3 / 200)
    assert sum(math.log(factor) ** 2 for factor in factors) / len(factors) == pytest.approx(0.3**2 + 0.045**2, rel=0.03)


def test_the_noise_goes_through_the_file(tmp_path: Path) -> None:
    costs = SimulatedCosts(StepCosts(0.01, 0.0005, 0.0004), pair_s=1e-9)
    runs = [a_measured_step(costs, num_seqs) for num_seqs in (1, 8)] + [a_measured_step(costs, num_tokens=64)]
    mixed = [one | {"step_ms": one["step_ms"] * (0.9, 1.1)[n % 2]} for n, one in enumerate([a_measured_step(costs, 8, 0, 16)] * 10)]
    write_costs(tmp_path / "costs.json", runs + mixed, [], 100)
    read = SimulatedEngine.read(tmp_path / "costs.json").costs
    assert read == fit(runs + mixed)[0]
    assert read.step_noise > 0.05
