"""What a step costs, and how it is fitted to measured steps."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
from triptych_engine.executor.simulated import SimulatedCosts
from triptych_engine.scheduling.step_costs import StepCosts

from benchmarks.engine.costs import fit


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
