"""Fits what is outside of engine steps, and what sharing a machine does to steps that compute, to real runs of one workload."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

from benchmarks.errors import BenchmarkError
from benchmarks.simulation.figures import Limits
from benchmarks.simulation.setup import Setup
from benchmarks.simulation.simulate import Simulation
from benchmarks.simulation.workload import Conversation

#: What the fit brings close, with weights.
_METRICS = {"ttft_p50_ms": 1.0, "ttft_mean_ms": 1.0, "token_p50_ms": 1.0, "token_p99_ms": 0.3}
_ROUNDS, _FIRST_STEP = 3, 0.5
#: Orders of simultaneous requests that a candidate is run with.
_ORDERS = 3
#: Where a search begins that was at zero, in seconds.
_LEAST_S = 1e-4


def fit(setup: Setup, conversations: Sequence[Conversation], real: dict, limits: Limits, *, computes: bool) -> tuple[Setup, float]:
    """The setup whose figures differ least from those of a real run, and the root mean square of the differences.

    Args:
        setup: to begin with. Its `message_s` and `frontend_*` are not changed.
        real: figures of the real run.
        computes: the engines compute, on cores and memory that others use too. Then what a step and each of its tokens take is
            brought to what the engines counted.
    """
    if computes:
        setup = calibrated(setup, conversations, real, limits)
    names = ["host_step_s", "request_s", "host_sequence_s"]

    def error(candidate: Setup) -> float:
        # The median TTFT jumps with the order of requests, so one run of a candidate would say little.
        runs = [Simulation(replace(candidate, jitter_seed=number)).run(conversations, limits) for number in range(_ORDERS)]
        found = {name: statistics.fmean(run[name] for run in runs) for name in _METRICS}
        logs = [weight * math.log(found[name] / real[name]) ** 2 for name, weight in _METRICS.items()]
        return math.sqrt(sum(logs) / sum(_METRICS.values()))

    best, least = setup, error(setup)
    for round_ in range(_ROUNDS):
        factor = 1 + _FIRST_STEP / 2**round_
        for name in names:
            best, least = _search(best, least, name, factor, error)
    return best, least


def calibrated(setup: Setup, conversations: Sequence[Conversation], real: dict, limits: Limits) -> Setup:
    """The setup in whose run a step, and a token of it, take as long as in a real run.

    Steps take different times in a simulated run as soon as other requests meet in them, so this is done again with what it found.

    Raises:
        BenchmarkError: by the engines' counts, a token takes no time, as when all windows are alike.
    """
    if real["per_step_token_ms"] <= 0:
        raise BenchmarkError(
            f"by the engines' counts, a token of a step takes {real['per_step_token_ms']:.3f} ms; load them more evenly"
        )
    for _ in range(_ROUNDS):
        found, overheads = Simulation(setup).run(conversations, limits), setup.overheads
        factor = real["per_step_token_ms"] / found["per_step_token_ms"]
        slowdown = factor * overheads.slowdown
        own_s = (found["per_step_ms"] / 1e3 - overheads.shared_step_s) * factor
        shared_s = max(0.0, real["per_step_ms"] / 1e3 - own_s)
        setup = replace(setup, overheads=replace(overheads, slowdown=slowdown, shared_step_s=shared_s))
    return setup


def _search(best: Setup, least: float, name: str, factor: float, error: Callable[[Setup], float]) -> tuple[Setup, float]:
    """Change one constant by a factor, up or down, as long as that helps."""
    for step in (factor, 1 / factor):
        while True:
            value = max(getattr(best.overheads, name), _LEAST_S) * step
            candidate = replace(best, overheads=replace(best.overheads, **{name: value}))
            found = error(candidate)
            if found >= least:
                break
            best, least = candidate, found
    return best, least
