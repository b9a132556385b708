"""The CPU kernels of sampling draw what plain sorts draw, on each instruction set."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from support.cpu_levels import LEVELS
from triptych_engine.runner.cpu.kernels import CpuKernels, load_kernels
from triptych_engine.runner.cpu.sampling_kernels import DRAW_ARGS, NOT_FINITE
from triptych_engine.runner.sampling.logprobs import PendingLogprobs
from triptych_engine.runner.sampling.numbers import uniform
from triptych_engine.runner.sampling.tensors.draw import draw_sorted
from triptych_engine.runner.transfer import HostToDevice

CPU = torch.device("cpu")


@pytest.mark.parametrize("isa", LEVELS)
def test_kernels_draw_what_a_complete_sort_draws(kernels_for: Callable[..., CpuKernels], isa: str):
    kernels = kernels_for(isa)
    count, generator = 400, torch.Generator().manual_seed(0)
    logits = torch.randn(count, 5000, generator=generator) * torch.tensor([0.3, 2.0, 6.0]).repeat(count)[:count, None]
    args = np.zeros(count, DRAW_ARGS)
    numbers = np.linspace(0, 0.999, count)
    args["row"], args["num_draws"], args["temperature"], args["is_cut"] = range(count), 1, 1.0, 1
    args["top_k"], args["top_p"], args["min_p"] = np.resize([0, 1, 5, 40, 4990], count), np.resize([1.0, 0.3, 0.9, 0.99], count), 0
    args["min_p"][::7] = 0.05
    cuts = np.stack([args["top_k"], args["top_p"], args["min_p"]], 1)
    wanted = draw_sorted(logits, torch.from_numpy(numbers), cuts, HostToDevice(CPU, packed=True))
    got = kernels.sampling.draw(logits, args, numbers[:, None])[:, 0]
    assert (got != wanted.numpy()).sum() <= 1, "rounding may move a number across a border, rarely"


def plainly_drawn(logits: np.ndarray, one: np.void, number: float) -> tuple[int, float]:
    """The token that DRAW_ARGS draw, by a sort of all tokens, and how near the number is to another token, relative to the mass."""
    weights = np.exp((logits.astype(np.float64) - logits.max()) / one["temperature"])
    order = np.lexsort((np.arange(len(weights)), -weights)) if one["is_cut"] else np.arange(len(weights))
    ordered = weights[order]
    left = int((ordered >= one["min_p"]).sum()) if one["is_cut"] else len(ordered)
    left = min(left, int(one["top_k"]) or left)
    after = np.cumsum(ordered[:left])
    if one["is_cut"] and one["top_p"] < 1:
        left = int(np.searchsorted(after, one["top_p"] * after[-1])) + 1
    target = number * after[left - 1]
    rank = min(int(np.searchsorted(after[:left], target, side="right")), left - 1)
    return int(order[rank]), float(np.abs(after[max(rank - 1, 0) : rank + 1] - target).min() / after[left - 1])


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("shape", ["flat", "usual", "peaked", "ties", "equal", "banned"])
def test_each_set_of_options_draws_the_token_of_a_plain_sort(kernels_for: Callable[..., CpuKernels], isa: str, shape: str):
    """So the same seed gives the same token, however the kernel finds it. 20,001 tokens are not a whole number of blocks."""
    generator = np.random.default_rng(7)
    logits = generator.standard_normal(20_001).astype(np.float32) * {"flat": 0.4, "peaked": 9.0}.get(shape, 2.5)
    if shape == "ties":
        logits = np.round(logits)
    if shape == "equal":
        logits[:] = 1.0
    if shape == "banned":
        logits[generator.integers(len(logits), size=19_990)] = -np.inf
    options = [
        (temperature, top_k, top_p, min_p)
        for temperature in (1.0, 0.3, 2.0)
        for top_k in (0, 1, 50, 3000)
        for top_p in (1.0, 0.95, 0.5, 1e-6)
        for min_p in (0.0, 1e-4, 0.05, 1.0)
    ]
    args = np.zeros(len(options), DRAW_ARGS)
    args["temperature"], args["top_k"], args["top_p"], args["min_p"] = np.array(options).T
    args["num_draws"] = 1
    numbers = uniform(np.arange(len(options), dtype=np.uint64), np.zeros(len(options), np.uint64))
    args["is_cut"] = (args["top_k"] > 0) | (args["top_p"] < 1) | (args["min_p"] > 0)
    got = kernels_for(isa).sampling.draw(torch.from_numpy(logits)[None], args, numbers[:, None])[:, 0].tolist()
    for token, one, number in zip(got, args, numbers, strict=True):
        wanted, distance = plainly_drawn(logits, one, number)
        # The kernel rounds weights to float32: tokens that are nearly as likely may change places.
        assert token == wanted or distance < 1e-6 or 0 < abs(logits[token] - logits[wanted]) < 1e-6, one


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("size", [40, 512, 5001])
def test_a_mask_draws_what_logits_without_the_other_tokens_draw(kernels_for: Callable[..., CpuKernels], isa: str, size: int):
    kernels, generator = kernels_for(isa), np.random.default_rng(3)
    logits = generator.standard_normal((60, size)).astype(np.float32)
    logits[5:10, ::2] = -np.inf
    allowed = generator.random((60, size)) < np.resize([0.0, 0.01, 0.5, 1.0], 60)[:, None]
    words = np.zeros((60, -(-size // 32) * 4), np.uint8)
    packed = np.packbits(allowed, axis=-1, bitorder="little")
    words[:, : packed.shape[1]] = packed
    args = np.zeros(60, DRAW_ARGS)
    args["row"], args["num_draws"], numbers = range(60), 1, generator.random((60, 1))
    args["temperature"] = np.resize([0.0, 1.0, 0.7], 60)
    args["top_p"], args["top_k"] = 1.0, np.resize([0, 0, 0, 0, 0, 6], 60)
    args["is_cut"] = args["top_k"] > 0
    args["mask"] = words.ctypes.data + np.arange(60) * words.strides[0]
    got = kernels.sampling.draw(torch.from_numpy(logits), args, numbers)[:, 0]
    masked = np.where(allowed, logits, -np.inf).astype(np.float32)
    args["mask"] = 0
    assert got.tolist() == kernels.sampling.draw(torch.from_numpy(masked), args, numbers)[:, 0].tolist()
    is_empty, is_greedy = ~np.isfinite(masked.max(1)), args["temperature"] == 0
    assert (got == -1).tolist() == is_empty.tolist()
    assert is_empty.any()
    assert got[is_greedy & ~is_empty].tolist() == masked.argmax(1)[is_greedy & ~is_empty].tolist()
    assert np.isfinite(masked[np.arange(60), got])[~is_empty].all()


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("size", [1, 16, 100, 1025, 2049, 49152])
def test_greedy_takes_the_first_of_the_likeliest(kernels_for: Callable[..., CpuKernels], isa: str, size: int):
    logits = torch.randn(7, size, generator=torch.Generator().manual_seed(0)).round(decimals=1)
    args = np.zeros(7, DRAW_ARGS)
    args["row"], args["num_draws"] = range(7), 1
    assert kernels_for(isa).sampling.draw(logits, args, np.zeros((7, 1)))[:, 0].tolist() == logits.argmax(-1).tolist()


def test_a_number_at_the_border_of_a_block_draws_a_token_that_can_come():
    """Sums of blocks and of their tokens round differently."""
    logits = torch.full((1, 2000), -60.0)
    logits[0, [3, 700, 1300]] = torch.tensor([0.0, 1.0, -1.0])
    weights = np.exp(logits[0].double().numpy())
    args, likely = np.zeros(1, DRAW_ARGS), weights > 1e-3
    args["num_draws"], args["temperature"] = 600, 1.0
    borders = np.cumsum(weights)[[3, 700, 1300]] / weights.sum()
    numbers = np.concatenate([border + np.linspace(-1e-8, 1e-8, 200) for border in borders]).clip(0, np.nextafter(1, 0))
    got = load_kernels().sampling.draw(logits, args, numbers[None])[0]
    assert set(got.tolist()) == {3, 700, 1300}, weights[got[~likely[got]]]


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("temperature", [0.0, 1e-42, 1.0])
def test_a_row_without_a_largest_logit_gives_no_token(kernels_for: Callable[..., CpuKernels], isa: str, temperature: float):
    logits = torch.zeros(6, 700)
    logits[0, 699], logits[1], logits[2, 40], logits[3, 40] = torch.nan, -torch.inf, torch.inf, -torch.inf
    logits[4, 1] = logits[4, 600] = 3.0
    args = np.zeros(18, DRAW_ARGS)
    args["row"], args["temperature"], args["top_p"] = np.tile(np.arange(6), 3), temperature, 1.0
    args["num_draws"][:12] = 1
    args["is_cut"][6:12], args["top_p"][6:12] = 1, 0.9
    got = kernels_for(isa).sampling.draw(logits, args, np.zeros((18, 1))).reshape(3, 6)
    assert got[:, :3].tolist() == [[NOT_FINITE, -1, NOT_FINITE]] * 3
    assert (got[:2, 3] >= 0).all()
    assert (got[:2, 4] == 1).all() or temperature == 1
    assert (got[2, 3:] == -1).all()


def test_numbers_are_those_of_numpy():
    generator = np.random.default_rng(0)
    seeds, positions = (generator.integers(0, 2**64, 1000, np.uint64) for _ in range(2))
    seeds[:2], positions[:2] = (0, 2**64 - 1), (2**64 - 1, 0)
    got = load_kernels().sampling.uniform(seeds, positions, 3)
    assert got.T.tolist() == [uniform(seeds, positions + np.uint64(draw << 60)).tolist() for draw in range(3)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_several_draws_are_those_of_their_numbers(temperature: float):
    kernels, logits = load_kernels().sampling, torch.randn(3, 700, generator=torch.Generator().manual_seed(0))
    numbers, args = np.random.default_rng(0).random((3, 4)), np.zeros(3, DRAW_ARGS)
    args["row"], args["temperature"], args["num_draws"] = range(3), temperature, (4, 1, 0)
    got = kernels.draw(logits, args, numbers)
    assert (got[[1, 2]] == -1).tolist() == [[False, True, True, True], [True] * 4]
    args["num_draws"] = 1
    assert got[0].tolist() == [kernels.draw(logits, args[:1], numbers[:1, [draw]])[0, 0] for draw in range(4)]
    assert len(set(got[0].tolist())) == (4 if temperature else 1)


@pytest.mark.parametrize(("size", "num_top"), [(3, 3), (300, 0), (700, 20), (5000, 20)])
def test_kernels_give_the_log_probabilities_of_torch(size: int, num_top: int):
    kernels = load_kernels()
    logits = torch.randn(9, size, generator=torch.Generator().manual_seed(0)) * 4
    logits[:, 1] = -torch.inf
    lines, chosen = torch.tensor([8, 0, 3]), torch.tensor([0, 2, 2])
    got = PendingLogprobs(logits, chosen, [num_top] * 3, lines, kernels).entries()
    wanted = PendingLogprobs(logits[lines], chosen, [num_top] * 3).entries()
    of_chosen = logits[lines].gather(1, chosen[:, None])
    assert [one.rank for one in got] == ((logits[lines] > of_chosen).sum(1) + 1).tolist()
    for one, other in zip(got, wanted, strict=True):
        assert (one.token_id, one.top_token_ids) == (other.token_id, other.top_token_ids)
        assert (one.logprob, *one.top_logprobs) == pytest.approx((other.logprob, *other.top_logprobs), abs=1e-5)
