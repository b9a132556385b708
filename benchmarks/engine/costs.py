"""Fits what a step costs to measured steps, for engines that are simulated."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from triptych_engine.executor.simulated import AttentionCosts
from triptych_engine.scheduling.step_costs import StepCosts

#: By what the costs are multiplied: 1, sequences, prompt tokens, tokens of contexts, pairs of a prompt's tokens.
_Row = tuple[float, float, float, float, float]


def fit(runs: Sequence[dict], prompts: Sequence[dict] = ()) -> tuple[StepCosts, AttentionCosts, float]:
    """The costs that differ least from the measured steps, relative to these, and the largest such difference.

    Args:
        runs: of benchmarks.steps: `phase`, `num_seqs` and `context`, or `num_tokens`; and `step_ms`.
        prompts: of benchmarks.steps: `prompt_tokens` in `num_steps`, and `seconds`.
    """
    rows = [_row(run) for run in runs] + [_row_of_prompt(one["num_steps"], one["prompt_tokens"]) for one in prompts]
    seconds = np.array([run["step_ms"] / 1e3 for run in runs] + [one["seconds"] for one in prompts])
    solved = _least_squares(np.array(rows, float) / seconds[:, None])
    costs, attention = StepCosts(*solved[:3]).plausible(), AttentionCosts(*solved[3:])
    found = np.array(rows) @ [costs.fixed_s, costs.decode_s, costs.prompt_token_s, attention.context_s, attention.pair_s]
    return costs, attention, float(np.abs(found / seconds - 1).max())


def _row(run: dict) -> _Row:
    if num_tokens := run.get("num_tokens", 0):
        return _row_of_prompt(1, num_tokens)
    return 1, run["num_seqs"], 0, run["num_seqs"] * run.get("context", 0), 0


def _row_of_prompt(num_steps: int, num_tokens: int) -> _Row:
    return num_steps, 0, num_tokens, 0, num_tokens**2 / 2


def _least_squares(shares: np.ndarray) -> list[float]:
    """Five costs. Of attention, those that nothing shows, or that would be negative, are zero. shares: [num_rows, 5]."""
    kept = [column for column in range(shares.shape[1]) if shares[:, column].any()]
    while True:
        costs = dict.fromkeys(range(shares.shape[1]), 0.0)
        costs.update(zip(kept, np.linalg.lstsq(shares[:, kept], np.ones(len(shares)), rcond=None)[0].tolist(), strict=True))
        negative = [column for column in (3, 4) if costs[column] < 0]
        if not negative:
            return list(costs.values())
        kept.remove(min(negative, key=lambda column: costs[column]))
