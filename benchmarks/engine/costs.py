"""Fits what a step costs to measured steps, for engines that are simulated."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from triptych_engine.scheduling.step_costs import StepCosts


def fit(runs: Sequence[dict]) -> tuple[StepCosts, float]:
    """The costs that differ least from the measured steps, relative to these, and the largest such difference.

    Args:
        runs: of benchmarks.steps: `phase`, `num_seqs` or `num_tokens`, and `step_ms`.
    """
    rows = [(1, run.get("num_seqs", 0), run.get("num_tokens", 0)) for run in runs]
    seconds = np.array([run["step_ms"] for run in runs]) / 1e3
    shares = np.array(rows, float) / seconds[:, None]  # [num_runs, 3]
    solved, *_ = np.linalg.lstsq(shares, np.ones(len(runs)), rcond=None)
    costs = StepCosts(*map(float, solved)).plausible()
    errors = [
        abs(costs.step_s(num_seqs, num_tokens) / step_s - 1)
        for (_, num_seqs, num_tokens), step_s in zip(rows, seconds, strict=True)
    ]
    return costs, max(errors)
