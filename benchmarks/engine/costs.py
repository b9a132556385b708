"""Fits what a step costs to measured steps, for engines that are simulated."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import nnls
from triptych_engine.executor.simulated import SimulatedCosts
from triptych_engine.scheduling.step_costs import StepCosts

#: The noise is taken from kinds of at least so many steps: the median of fewer follows them.
_LEAST_OF_A_KIND = 5
#: The shares of the deviations between which the noise is taken.
_LOW, _HIGH = 0.05, 0.95


@dataclass(frozen=True, slots=True)
class _Measured:
    """So many equal steps, which took so many seconds together.

    Attributes:
        num_decoding, num_prompt_tokens: of each of the steps.
        context: tokens before those that are decoded, of all sequences.
        pairs: of a prompt's tokens with those before them, in all steps.
    """

    seconds: float
    num_decoding: int = 0
    num_prompt_tokens: float = 0.0
    context: int = 0
    pairs: float = 0.0
    num_steps: int = 1


def fit(runs: Sequence[dict], prompts: Sequence[dict] = ()) -> tuple[SimulatedCosts, float]:
    """The costs that differ least from the measured steps, relative to these, and the largest such difference.

    The curve has a point for each number of tokens of a step that only decodes, or only computes a prompt.

    Args:
        runs: of benchmarks.steps: `phase`, `num_seqs`, `context`, `num_tokens` and `num_before`, where they are; and `step_ms`.
        prompts: of benchmarks.steps: `prompt_tokens` in `num_steps`, and `seconds`.
    """
    measured = [_of_step(run) for run in runs] + [_of_prompt(one) for one in prompts]
    alone = [(size["num_seqs"], size["num_tokens"]) for size in map(_sizes, runs)]
    points = sorted({num_seqs + num_tokens for num_seqs, num_tokens in alone if not (num_seqs and num_tokens)})
    seconds = np.array([one.seconds for one in measured])
    attention = [[one.context, one.pairs] for one in measured]
    linear = [[one.num_steps, one.num_decoding, one.num_steps * one.num_prompt_tokens] for one in measured]
    steps = _least_squares(np.hstack([linear, attention]), seconds)
    shape = np.array([one.num_steps * _rises(points, one.num_decoding + one.num_prompt_tokens) for one in measured])
    rows = np.hstack([shape, [[one.num_decoding] for one in measured], attention])
    found = _least_squares(rows, seconds)
    curve = tuple(zip(points, np.cumsum(found[: len(points)]).tolist(), strict=True))
    costs = SimulatedCosts(StepCosts(*steps[:3].tolist()).plausible(), curve, *found[len(points) :].tolist())
    return replace(costs, step_noise=_noise(runs, costs)), float(np.abs(rows @ found / seconds - 1).max())


def _noise(runs: Sequence[dict], costs: SimulatedCosts) -> float:
    """The standard deviation of the logarithm of a mixed step's time, around the median of the steps of its kind; 0 with too few.

    A busy engine takes mixed steps, each with other sizes than the one before. The same step again and again varies much less.

    The range of nine tenths of the deviations tells it. Rare pauses, of two to five times a step, would make a plain standard
    deviation two or three times as large. A median absolute deviation would tell of the middle half alone, which is narrow; but the
    slower steps make the tails.
    """
    kinds: dict[tuple[int, int], list[float]] = defaultdict(list)
    for run in runs:
        size = _sizes(run)
        num_seqs, num_tokens = size["num_seqs"], size["num_tokens"]
        if num_seqs and num_tokens:
            # Steps of a kind have different contexts. What these cost is in the fitted time.
            attention_s = num_seqs * costs.attention_s(1, size["context"]) + costs.attention_s(num_tokens, size["num_before"])
            fitted_s = costs.step_s(num_seqs, num_tokens) + attention_s
            kinds[num_seqs, num_tokens].append(math.log(run["step_ms"] / 1e3 / fitted_s))
    large = [logs for logs in kinds.values() if len(logs) >= _LEAST_OF_A_KIND]
    deviations = [log - statistics.median(logs) for logs in large for log in logs]
    if not deviations:
        return 0.0
    low, high = np.quantile(deviations, (_LOW, _HIGH))
    normal = statistics.NormalDist()
    return min(1.0, float((high - low) / (normal.inv_cdf(_HIGH) - normal.inv_cdf(_LOW))))


def _sizes(run: dict) -> dict[str, int]:
    return {name: run.get(name, 0) for name in ("num_seqs", "num_tokens", "context", "num_before")}


def _of_step(run: dict) -> _Measured:
    size = _sizes(run)
    num_seqs, num_tokens = size["num_seqs"], size["num_tokens"]
    pairs = num_tokens * (size["num_before"] + num_tokens / 2)
    return _Measured(run["step_ms"] / 1e3, num_seqs, num_tokens, num_seqs * size["context"], pairs)


def _of_prompt(prompt: dict) -> _Measured:
    num_tokens, num_steps = prompt["prompt_tokens"], prompt["num_steps"]
    return _Measured(prompt["seconds"], 0, num_tokens / num_steps, 0, num_tokens**2 / 2, num_steps)


def _rises(points: Sequence[int], num_tokens: float) -> np.ndarray:
    """By what the rise of the curve up to each of its points counts for a step of so many tokens. [num_points]"""
    rises = [1.0]
    for low, high in itertools.pairwise(points):
        part = max(num_tokens - low, 0.0) / (high - low)
        rises.append(part if high == points[-1] else min(part, 1.0))
    return np.array(rises)


def _least_squares(rows: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """The costs, none of them negative, with which the rows come nearest to the seconds, relative to these.

    Args:
        rows: [num_measured, num_costs].
        seconds: [num_measured].
    """
    found: np.ndarray = nnls(rows / seconds[:, None], np.ones(len(seconds)))[0]
    return found
