"""The sampler: distributions, edits, seeds, log probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from support.builders.engine import GREEDY
from triptych_engine.runner.cpu.kernels import CpuKernels, load_kernels
from triptych_engine.runner.sampling.choice import SamplingMetadata
from triptych_engine.runner.sampling.logprobs import PendingLogprobs
from triptych_engine.runner.sampling.numbers import uniform
from triptych_engine.runner.sampling.sampler import Sampler, SampleResult
from triptych_engine.runner.sampling.tensors.choice import TensorChoice
from triptych_engine.runner.transfer import HostToDevice
from triptych_engine.scheduling.request import SamplingParams

VOCAB = 300
CPU = torch.device("cpu")


def sample_one(
    logits: torch.Tensor,
    sampling: SamplingParams,
    prompt: list[int] | None = None,
    output: list[int] | None = None,
    kernels: CpuKernels | None = None,
) -> int:
    """One draw for one request whose prompt and output so far are given."""
    prompt, output = prompt or [0], output or []
    sampler = Sampler(1, CPU, kernels)
    sampler.add(0, sampling, prompt + output, len(prompt))
    return int(sample(sampler, logits[None], [0], len(output)).token_ids[0])


def sample(sampler: Sampler, logits: torch.Tensor, rows: Sequence[int], position: int = 0) -> SampleResult:
    """A draw for each row, after so many output tokens."""
    return sampler.sample(logits.clone(), SamplingMetadata(np.array(rows), np.full(len(rows), position))).result()


def reference_distribution(logits: torch.Tensor, sampling: SamplingParams) -> torch.Tensor:
    """The textbook: sort everything, cut, normalise."""
    probabilities = (logits.double() / sampling.temperature).softmax(-1)
    probabilities, ids = probabilities.sort(descending=True, stable=True)
    keep = probabilities >= sampling.min_p * probabilities[0]
    if sampling.top_k:
        keep &= torch.arange(len(keep)) < sampling.top_k
    kept = probabilities * keep
    keep &= kept.cumsum(-1) - kept < sampling.top_p * kept.sum()
    kept = torch.zeros_like(kept).scatter(0, ids, probabilities * keep)
    return kept / kept.sum()


def test_a_sequence_is_taken_up_without_waiting_for_the_device(monkeypatch: pytest.MonkeyPatch):
    """Tensors made of lists, and counts of what is on the device, would wait for the step before."""
    sampling = replace(
        GREEDY, max_tokens=9, min_tokens=9, stop_token_ids=frozenset({7, 3}), logit_bias={2: 1.5, 4: -1.0}, bad_token_ids=(1,),
        allowed_token_ids=(0, 1, 2, 5), repetition_penalty=1.5,
    )  # fmt: skip
    choice = TensorChoice(1, CPU, HostToDevice(CPU, packed=True))
    with monkeypatch.context() as patch:
        for name in ("tensor", "bincount", "zeros", "ones"):
            patch.setattr(torch, name, None)
        for name in ("tolist", "item", "cpu"):
            patch.setattr(torch.Tensor, name, None)
        choice.add(0, sampling, [1, 6, 6, 2, 6], 2)
    logits = choice._edited(
        torch.tensor([[3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0]]), SamplingMetadata(np.array([0]), np.array([3]))
    )
    lowest = -np.inf
    assert logits.tolist() == [[3.0, lowest, 3.5, lowest, lowest, 3.0, lowest, lowest]]


BOTH = pytest.mark.parametrize("kernels", [None, load_kernels()], ids=["torch", "kernels"])


@BOTH
@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32),
    spread=st.sampled_from([0.01, 1.0, 8.0]),
    top_k=st.sampled_from([0, 1, 3, 400, 3000]),
    top_p=st.sampled_from([1.0, 0.999, 0.9, 0.3, 1e-6]),
    min_p=st.sampled_from([0.0, 0.01, 0.5, 1.0]),
)
def test_a_draw_never_leaves_the_cut_and_the_lazy_sort_changes_nothing(
    kernels: CpuKernels | None, seed: int, spread: float, top_k: int, top_p: float, min_p: float
):
    """3,000 near-equal logits make the cut lie far beyond the candidates that are sorted first."""
    logits = torch.randn(3000, generator=torch.Generator().manual_seed(seed)) * spread
    sampling = replace(GREEDY, temperature=1.0, seed=seed, top_k=top_k, top_p=top_p, min_p=min_p)
    token = sample_one(logits, sampling, kernels=kernels)
    reference = reference_distribution(logits, sampling)
    order = reference.argsort(descending=True, stable=True)
    cumulative = reference[order].cumsum(-1)
    number = uniform(np.array([seed], np.uint64), np.array([0], np.uint64))[0]
    if top_k or top_p < 1 or min_p > 0:
        wanted = int(order[int((cumulative <= number).sum())])
        near_border = (cumulative - number).abs().min() < 1e-9
        # Probabilities that are equal in float32 may be in another order.
        assert token == wanted or near_border or reference[token].item() == pytest.approx(reference[wanted].item(), rel=1e-7)
    assert reference[token] > 0


@BOTH
def test_top_p_is_of_what_min_p_leaves_beyond_the_first_candidates(kernels: CpuKernels | None):
    """Top-p ends among the candidates that are sorted first, min-p far behind them."""
    logits = torch.randn(3000, generator=torch.Generator().manual_seed(0))
    sampling = replace(GREEDY, temperature=1.0, top_p=0.3, min_p=0.05)
    cumulative = reference_distribution(logits, sampling).sort(descending=True, stable=True)
    numbers = uniform(np.arange(200, dtype=np.uint64), np.zeros(200, np.uint64))
    wanted = [int(cumulative.indices[int((cumulative.values.cumsum(-1) <= number).sum())]) for number in numbers]
    assert [sample_one(logits, replace(sampling, seed=seed), kernels=kernels) for seed in range(200)] == wanted


def test_the_same_seed_gives_the_same_token_whatever_else_is_in_the_batch():
    logits = torch.randn(6, VOCAB, generator=torch.Generator().manual_seed(0))
    params = [replace(GREEDY, temperature=0.9, seed=7, top_p=0.95), GREEDY, replace(GREEDY, temperature=1.3, seed=9, logprobs=2)]
    alone = [sample_one(logits[i], params[i % 3]) for i in range(6)]
    sampler = Sampler(6, CPU)
    for row in range(6):
        sampler.add(row, params[row % 3], [0], 1)
    order = np.array([4, 0, 5, 3, 1, 2])
    together = sample(sampler, logits[order], order.tolist()).token_ids
    assert together.tolist() == [alone[row] for row in order]


def test_a_preempted_sequence_draws_on_where_it_was():
    logits = torch.zeros(VOCAB)
    sampling = replace(GREEDY, temperature=1.0, seed=3)
    sampler = Sampler(1, CPU)
    sampler.add(0, sampling, [0], 1)
    tokens = [int(sample(sampler, logits[None], [0], position).token_ids[0]) for position in range(5)]
    assert sample_one(logits, sampling, output=tokens[:3]) == tokens[3]
    assert len(set(tokens)) > 1


def test_uniform_numbers_are_uniform_and_depend_on_both_arguments():
    seeds, positions = np.meshgrid(np.arange(200, dtype=np.uint64), np.arange(200, dtype=np.uint64))
    numbers = uniform(seeds.ravel(), positions.ravel())
    assert len(np.unique(numbers)) == numbers.size
    assert chisquare(np.histogram(numbers, 50, (0, 1))[0]).pvalue > 1e-4
    lag = np.corrcoef(numbers.reshape(200, 200)[:-1].ravel(), numbers.reshape(200, 200)[1:].ravel())[0, 1]
    assert abs(lag) < 0.02


def test_greedy_takes_the_largest():
    assert sample_one(torch.tensor([0.0, 3.0, 2.0]), GREEDY) == 1


def test_repetition_penalty_reaches_prompt_and_output():
    logits = torch.tensor([2.0, 1.9, 1.8, -1.0])
    sampling = replace(GREEDY, repetition_penalty=1.5)
    assert sample_one(logits, sampling, prompt=[0]) == 1
    assert sample_one(logits, sampling, prompt=[0], output=[1]) == 2


def test_presence_and_frequency_penalties_reach_the_output_only():
    logits = torch.tensor([2.0, 1.5, 1.4])
    assert sample_one(logits, replace(GREEDY, presence_penalty=1.0), prompt=[0]) == 0
    assert sample_one(logits, replace(GREEDY, presence_penalty=0.55), prompt=[2], output=[0]) == 1
    assert sample_one(logits, replace(GREEDY, frequency_penalty=0.2), prompt=[2], output=[0, 0]) == 0
    assert sample_one(logits, replace(GREEDY, frequency_penalty=0.2), prompt=[2], output=[0, 0, 0]) == 1


def test_penalties_count_what_is_sampled():
    sampler = Sampler(1, CPU)
    sampler.add(0, replace(GREEDY, frequency_penalty=0.6), [2], 1)
    logits = torch.tensor([[2.0, 1.5, 0.0]])
    assert [int(sample(sampler, logits, [0]).token_ids[0]) for _ in range(4)] == [0, 1, 0, 1]


def test_bias_bans_and_allowed_tokens():
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0])
    assert sample_one(logits, replace(GREEDY, logit_bias={3: 10.0})) == 3
    assert sample_one(logits, replace(GREEDY, bad_token_ids=(0, 1))) == 2
    assert sample_one(logits, replace(GREEDY, allowed_token_ids=(2, 3))) == 2
    assert sample_one(logits, replace(GREEDY, allowed_token_ids=(2, 3), temperature=5.0, seed=1)) in (2, 3)


def test_stop_tokens_are_held_back_until_min_tokens():
    logits = torch.tensor([5.0, 1.0])
    sampling = replace(GREEDY, min_tokens=2, stop_token_ids=frozenset({0}))
    assert [sample_one(logits, sampling, output=[1] * done) for done in range(3)] == [1, 1, 0]


def test_logprobs_are_of_the_model_before_any_edit():
    logits = torch.tensor([2.0, 1.0, 0.0])
    sampler = Sampler(1, CPU)
    sampler.add(0, replace(GREEDY, logit_bias={0: -100.0}, temperature=0.0, logprobs=2), [0], 1)
    result = sample(sampler, logits[None], [0])
    entry, expected = result.logprobs[0], logits.log_softmax(-1)
    assert (entry.token_id, entry.rank, entry.top_token_ids) == (1, 2, (0, 1))
    assert entry.logprob == pytest.approx(expected[1].item())
    assert entry.top_logprobs == pytest.approx(expected[:2].tolist())


def test_logprobs_of_the_chosen_token_alone():
    (entry,) = PendingLogprobs(torch.zeros(1, 4), torch.tensor([2]), [0]).entries()
    assert entry.logprob == pytest.approx(np.log(0.25))
    assert entry.top_token_ids == ()


@BOTH
@pytest.mark.parametrize("poison", [float("nan"), float("-inf")])
def test_a_row_without_a_finite_logit_fails_alone(kernels: CpuKernels | None, poison: float):
    sampler = Sampler(3, CPU, kernels)
    for row in range(3):
        sampler.add(row, replace(GREEDY, temperature=float(row)), [0], 1)
    logits = torch.randn(3, VOCAB)
    logits[1] = poison
    result = sample(sampler, logits, range(3))
    assert result.invalid == [1]
    assert result.token_ids[0] == logits[0].argmax()


def test_several_lines_of_one_request_are_drawn_each_at_its_position():
    """As a step that brings several tokens does. The parameters are those of the row, once."""
    logits = torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(0))
    params = [replace(GREEDY, temperature=1.0, seed=3, bad_token_ids=(5,), logprobs=1), replace(GREEDY, logit_bias={7: 50.0})]
    sampler = Sampler(2, CPU)
    for row, sampling in enumerate(params):
        sampler.add(row, sampling, [0], 1)
    metadata = SamplingMetadata(np.array([0, 0, 1, 0]), np.array([2, 3, 0, 4]))
    result = sampler.sample(logits, metadata).result()
    alone = [sample_one(logits[line], params[0], output=[1] * position) for line, position in ((0, 2), (1, 3), (3, 4))]
    assert result.token_ids.tolist() == [alone[0], alone[1], 7, alone[2]]
    assert {line: entry.token_id for line, entry in result.logprobs.items()} == {0: alone[0], 1: alone[1], 3: alone[2]}
