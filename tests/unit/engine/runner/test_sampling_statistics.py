"""Tokens come as often as a textbook in NumPy says: chi-squared over 20,000 draws, on CPUs and in the way of other devices."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from support.builders.engine import GREEDY
from triptych_engine.runner.cpu.kernels import CpuKernels, load_kernels
from triptych_engine.runner.sampling.choice import SamplingMetadata
from triptych_engine.runner.sampling.rules.constraints import TokenMasks
from triptych_engine.runner.sampling.rules.token_rules import StepRules
from triptych_engine.runner.sampling.sampler import Sampler

VOCAB, NUM_DRAWS, NUM_ROWS = 300, 20_000, 2_000
#: Below it a distribution is refused; one of the right ones is, once in 10,000 sittings.
MIN_P_VALUE = 1e-4
NONE = np.zeros(0, np.int64)
PROMPT, OUTPUT = [3, 17, 40, 41, 3], [5, 17, 17, 60, 5, 5]
LOGITS = (np.random.default_rng(1).standard_normal(VOCAB) * 2).astype(np.float32)
LOGITS[[3, 4, 5, 17, 40, 60]] += 3  # so that what is said about them matters

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "cold": {"temperature": 0.5},
    "hot": {"temperature": 1.8},
    "top-k": {"top_k": 7},
    "top-p": {"top_p": 0.7},
    "top-p of nearly all": {"top_p": 0.999},
    "min-p": {"min_p": 0.1},
    "repetition": {"repetition_penalty": 1.7},
    "frequency": {"frequency_penalty": 0.8},
    "presence": {"presence_penalty": 1.5},
    "negative presence": {"presence_penalty": -1.5},
    "bias": {"logit_bias": {4: 3.0, 9: -2.5, 17: 1.0}},
    "allowed": {"allowed_token_ids": (1, 5, 17, 100, 299)},
    "bad": {"bad_token_ids": tuple(int(token) for token in LOGITS.argsort()[-4:])},
    "all": {
        "temperature": 1.3, "top_k": 60, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.3, "frequency_penalty": 0.4,
        "presence_penalty": 0.3, "logit_bias": {4: 3.0}, "bad_token_ids": (7, 8),
    },
}  # fmt: skip


def textbook(
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    frequency_penalty: float = 0.0,
    presence_penalty: float = 0.0,
    logit_bias: dict[int, float] | None = None,
    allowed_token_ids: tuple[int, ...] = (),
    bad_token_ids: tuple[int, ...] = (),
) -> np.ndarray:
    """[VOCAB] probabilities: each option in a line of its own, as its documentation defines it."""
    logits, counts = LOGITS.astype(np.float64), Counter(OUTPUT)
    for token in {*PROMPT, *OUTPUT}:
        logits[token] = logits[token] / repetition_penalty if logits[token] > 0 else logits[token] * repetition_penalty
    for token, count in counts.items():
        logits[token] -= frequency_penalty * count + presence_penalty
    for token, added in (logit_bias or {}).items():
        logits[token] += added
    for token in range(VOCAB):
        if (allowed_token_ids and token not in allowed_token_ids) or token in bad_token_ids:
            logits[token] = -np.inf
    weights = np.exp((logits - logits.max()) / temperature)
    order = sorted(range(VOCAB), key=lambda token: -weights[token])
    kept = [token for token in order[: top_k or VOCAB] if weights[token] >= min_p * weights[order[0]]]
    total, nucleus, mass = sum(weights[token] for token in kept), [], 0.0
    for token in kept:  # the fewest tokens that have top_p of the mass
        if mass >= top_p * total and nucleus:
            break
        nucleus.append(token)
        mass += weights[token]
    probabilities = np.zeros(VOCAB)
    probabilities[nucleus] = weights[nucleus] / mass
    return probabilities


def draws(kernels: CpuKernels | None, rules: StepRules | None = None, **options: Any) -> np.ndarray:
    """[VOCAB] how often each token comes; each draw has its own seed or position."""
    counts = np.zeros(VOCAB, np.int64)
    logits = torch.from_numpy(LOGITS).expand(NUM_ROWS, -1)
    sampler = Sampler(NUM_ROWS, torch.device("cpu"), kernels)
    for number in range(NUM_DRAWS // NUM_ROWS):
        for row in range(NUM_ROWS if not number or any("penalty" in name for name in options) else 0):
            if number:  # penalties count what was drawn
                sampler.remove(row)
            sampling = replace(GREEDY, **({"temperature": 1.0, "seed": row} | options))
            sampler.add(row, sampling, PROMPT + OUTPUT, len(PROMPT))
        metadata = SamplingMetadata(np.arange(NUM_ROWS), np.full(NUM_ROWS, number), rules)
        counts += np.bincount(sampler.sample(logits.clone(), metadata).result().token_ids, minlength=VOCAB)
    return counts


def p_value(counts: np.ndarray, probabilities: np.ndarray) -> float:
    """Of the chi-squared test; 0 if a token came that cannot. Tokens that are expected fewer than five times count together."""
    if counts[probabilities == 0].any():
        return 0.0
    wanted = probabilities * counts.sum()
    rare = wanted < 5
    observed, expected = np.append(counts[~rare], counts[rare].sum()), np.append(wanted[~rare], wanted[rare].sum())
    present = expected > 0
    return float(chisquare(observed[present], expected[present], sum_check=False).pvalue)


#: Other devices sort all rows to cut them. Whatever edits the logits is the same for all devices.
SORTED_CASES = ("plain", "hot", "top-k", "top-p", "top-p of nearly all", "min-p", "all")


WAYS = [*(("kernels", case) for case in CASES), *(("sorted", case) for case in SORTED_CASES)]


@pytest.mark.parametrize(
    ("way", "case"), [pytest.param(way, case, marks=() if case == "all" else pytest.mark.long) for way, case in WAYS]
)
def test_draws_follow_the_distribution(way: str, case: str):
    kernels = load_kernels() if way == "kernels" else None
    assert p_value(draws(kernels, **CASES[case]), textbook(**CASES[case])) > MIN_P_VALUE


@pytest.mark.long
@pytest.mark.parametrize(
    ("drawn", "claimed"),
    [
        ({"temperature": 1.0}, {"temperature": 1.05}),
        ({"top_k": 7}, {"top_k": 8}),
        ({"top_k": 8}, {"top_k": 7}),
        ({"top_p": 0.7}, {"top_p": 0.72}),
        ({"min_p": 0.1}, {"min_p": 0.12}),
        ({}, {"repetition_penalty": 1.2}),
        ({}, {"frequency_penalty": 0.2}),
        ({}, {"presence_penalty": 0.6}),
        ({}, {"logit_bias": {4: 0.5}}),
        ({}, {"bad_token_ids": (4,)}),
    ],
)
def test_a_slightly_wrong_distribution_is_found(drawn: dict[str, Any], claimed: dict[str, Any]):
    """So the test above can fail."""
    assert p_value(draws(load_kernels(), **drawn), textbook(**claimed)) < MIN_P_VALUE


class _Accepts:
    """Constraints whose rows accept some tokens."""

    def __init__(self, accepted: np.ndarray) -> None:
        self._accepted, self.num_masks = accepted, 0

    def take(self, rows: np.ndarray, token_ids: np.ndarray, takes_forced: np.ndarray) -> np.ndarray:
        tokens = [next((token for token in offered if token >= 0 and self._accepted[token]), -1) for offered in token_ids.tolist()]
        return np.array(tokens)

    def masks(self, rows: np.ndarray) -> TokenMasks:
        self.num_masks += len(rows)
        words = np.packbits(np.pad(self._accepted, (0, -VOCAB % 32)), bitorder="little").view(np.uint32)
        return TokenMasks(np.tile(words, (len(rows), 1)), np.zeros(len(rows), np.bool_), 0)


@pytest.mark.long
@pytest.mark.parametrize("way", ["kernels", "sorted"])
@pytest.mark.parametrize("case", ["plain", "cold", "top-k", "top-p", "min-p", "all"])
def test_constrained_draws_follow_the_distribution_of_the_accepted_tokens(way: str, case: str):
    """A token that was drawn without a mask counts as one drawn with it. Cuts choose among the accepted tokens."""
    accepted = np.random.default_rng(5).random(VOCAB) < 0.4
    rules = StepRules(NONE, NONE, np.arange(NUM_ROWS), constraints := _Accepts(accepted))  # type: ignore[arg-type]
    counts = draws(load_kernels() if way == "kernels" else None, rules, **CASES[case])
    options = CASES[case] | {"allowed_token_ids": tuple(np.flatnonzero(accepted).tolist())}
    assert p_value(counts, textbook(**options)) > MIN_P_VALUE
    saved = NUM_DRAWS - constraints.num_masks
    assert (saved > 0) == (way == "kernels" and load_kernels() is not None and case in ("plain", "cold"))
