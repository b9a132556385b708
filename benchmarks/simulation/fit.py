"""Fits what is outside of engine steps, and what sharing a machine does to steps that compute, to real runs of one workload."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

from scipy.optimize import brentq

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
#: The smallest and the largest factor that is looked for.
_SLOWDOWNS = (0.7, 2.0)
#: Where a search begins that was at zero, in seconds.
_LEAST_S = 1e-4


def fit(setup: Setup, conversations: Sequence[Conversation], real: dict, limits: Limits, *, computes: bool) -> tuple[Setup, float]:
    """The setup whose figures differ least from those of a real run, and the root mean square of the differences.

    Args:
        setup: to begin with. Its `message_s` and `frontend_*` are not changed.
        real: figures of the real run.
        computes: the engines compute, on cores and memory that others use too. Others have had the part of the engines' steps that
            was not the engines' processor time; and steps are slowed, until all together take as long as the engines counted. The
            host's time between steps is in their measured costs.
    """
    names = ["host_step_s", "request_s", "host_sequence_s"]
    if computes:
        names = ["request_s"]
        shared_step_s = max(0.0, real["step_s"] - real["cpu_s"]["engine"]) / real["num_steps"]
        setup = replace(setup, overheads=replace(setup.overheads, shared_step_s=shared_step_s, host_step_s=0.0))

    def error(candidate: Setup) -> float:
        # The median TTFT jumps with the order of requests, so one run of a candidate would say little.
        runs = [Simulation(replace(candidate, jitter_seed=number)).run(conversations, limits) for number in range(_ORDERS)]
        found = {name: statistics.fmean(run[name] for run in runs) for name in _METRICS}
        logs = [weight * math.log(found[name] / real[name]) ** 2 for name, weight in _METRICS.items()]
        return math.sqrt(sum(logs) / sum(_METRICS.values()))

    best = setup
    for round_ in range(_ROUNDS):
        if computes:
            best = slowed(best, conversations, real["step_s"], limits)
        least = error(best)
        for name in names:
            best, least = _search(best, least, name, 1 + _FIRST_STEP / 2**round_, error)
    return best, least


def slowed(setup: Setup, conversations: Sequence[Conversation], step_s: float, limits: Limits) -> Setup:
    """The setup with the `slowdown` with which all steps of a run take so many seconds together.

    Raises:
        BenchmarkError: the costs are those of quite another machine.
    """

    def with_slowdown(slowdown: float) -> Setup:
        return replace(setup, overheads=replace(setup.overheads, slowdown=slowdown))

    def total_s(slowdown: float) -> float:
        found: float = Simulation(with_slowdown(slowdown)).run(conversations, limits)["step_s"]
        return found

    low, high = _SLOWDOWNS
    least_s, most_s = total_s(low), total_s(high)
    if not least_s < step_s < most_s:
        raise BenchmarkError(
            f"the engines' steps took {step_s:.1f} s together, simulated ones {least_s:.1f} s {low:g} times as long as measured, "
            f"{most_s:.1f} s {high:g} times; measure the costs on this machine"
        )
    return with_slowdown(float(brentq(lambda slowdown: total_s(slowdown) - step_s, low, high, xtol=5e-3)))


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
