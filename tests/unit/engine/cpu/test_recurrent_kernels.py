"""The kernels of recurrent layers compute what the reference in torch does, in any batch, at every level of this CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.cpu_levels import LEVELS
from triptych_engine.runner.cpu.kernels import CpuKernels
from triptych_engine.runner.recurrent.ops import Recurrence, TorchRecurrentOps
from triptych_engine.runner.recurrent.step import RecurrentStep

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
NUM_SLOTS = 9
#: Tokens of each sequence in the step, and how many were computed before.
LENGTHS, COMPUTED = [1, 7, 1, 12, 3], [5, 0, 0, 8, 16]
#: Snapshots after so many tokens, in these slots.
SNAPSHOTS = {1: [(4, 5)], 3: [(9, 6), (16, 7), (20, 8)]}
STEP = RecurrentStep.of(np.cumsum([0, *LENGTHS]), np.array(COMPUTED), [0, 1, 2, 3, 4], SNAPSHOTS)
NUM_TOKENS = sum(LENGTHS)


@pytest.fixture(params=LEVELS)
def ops(request: pytest.FixtureRequest, kernels_for: Callable[..., CpuKernels]):
    return kernels_for(request.param).new_recurrent_ops()


def _randn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.fixture(autouse=True)
def _kernels_must_take_it(monkeypatch: pytest.MonkeyPatch):
    """The reference is called by the tests, not by the kernels."""
    monkeypatch.setattr("triptych_engine.runner.cpu.recurrent_kernels.TorchRecurrentOps.conv", _not_taken)
    monkeypatch.setattr("triptych_engine.runner.cpu.recurrent_kernels.TorchRecurrentOps.recur", _not_taken)


def _not_taken(*args: object, **kwargs: object) -> None:
    raise AssertionError("the kernel did not take this shape")


class _Reference(TorchRecurrentOps):
    conv, recur = TorchRecurrentOps.conv, TorchRecurrentOps.recur


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize(
    ("channels", "width", "silu", "has_bias"), [(48, 3, True, True), (16, 2, False, False), (64, 1, True, False)]
)
def test_the_convolution(ops, dtype: torch.dtype, channels: int, width: int, silu: bool, has_bias: bool, is_gated: bool):
    num_inputs = 3 * channels if is_gated else channels
    x = _randn(NUM_TOKENS, num_inputs + 16, dtype=dtype)[:, 8 : num_inputs + 8]  # rows apart
    weight = _randn(channels, width + 1, dtype=dtype, seed=1)
    bias = _randn(channels, dtype=dtype, seed=2) if has_bias else None
    states = [_randn(NUM_SLOTS, width, channels, seed=3) for _ in range(2)]
    options = {"silu": silu, "is_gated": is_gated, "step": STEP}
    expected = _Reference().conv(x.float(), weight.float(), None if bias is None else bias.float(), state=states[0], **options)
    got = ops.conv(x, weight, bias, state=states[1], **options)
    assert got.dtype == dtype
    torch.testing.assert_close(got.float(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    torch.testing.assert_close(states[1], states[0], rtol=0, atol=0)


def _inputs(dtype: torch.dtype, num_key_heads: int, num_heads: int, key_dim: int, value_dim: int) -> Recurrence:
    """With rows apart, as parts of one product."""
    size = num_key_heads * key_dim
    mixed = _randn(NUM_TOKENS, 2 * size + num_heads * value_dim, dtype=dtype)
    query, key, value = mixed.split([size, size, num_heads * value_dim], -1)
    return Recurrence(
        query=query.unflatten(-1, (num_key_heads, key_dim)),
        key=key.unflatten(-1, (num_key_heads, key_dim)),
        value=value.unflatten(-1, (num_heads, value_dim)),
        decay=torch.rand(NUM_TOKENS, num_heads, generator=torch.Generator().manual_seed(1)),
        beta=torch.rand(NUM_TOKENS, num_heads, generator=torch.Generator().manual_seed(2)),
    )


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", [(2, 4, 16, 32), (1, 1, 128, 128), (2, 2, 256, 64), (4, 4, 64, 16), (1, 3, 48, 48)], ids=str)
@pytest.mark.parametrize("kind", ["delta rule", "delta rule by rows", "scan"])
def test_the_recurrence(ops, dtype: torch.dtype, shape: tuple[int, int, int, int], kind: str):
    _, num_heads, key_dim, value_dim = shape
    inputs = _inputs(dtype, *shape)
    if kind == "scan":
        inputs = replace(inputs, skip=_randn(num_heads, seed=4))
    else:
        inputs = replace(inputs, has_delta_rule=True, normalizes=True, scale=key_dim**-0.5)
    if kind == "delta rule by rows":
        rows = torch.rand(NUM_TOKENS, num_heads, key_dim, generator=torch.Generator().manual_seed(3))
        inputs = replace(inputs, decay=rows)
    states = [_randn(NUM_SLOTS, num_heads, key_dim, value_dim, seed=5) for _ in range(2)]
    expected = _Reference().recur(inputs, states[0], STEP)
    got = ops.recur(inputs, states[1], STEP)
    assert got.dtype == dtype
    scale = expected.float().abs().max().item()
    torch.testing.assert_close(got.float(), expected.float(), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * scale)
    torch.testing.assert_close(states[1], states[0], rtol=1e-4, atol=1e-4)


def test_a_sequence_has_the_same_result_in_any_batch(ops):
    """To the last bit: `--batch-invariant` needs no other kernel."""
    inputs = replace(_inputs(torch.float32, 2, 4, 64, 64), has_delta_rule=True, normalizes=True)
    state = _randn(NUM_SLOTS, 4, 64, 64)
    together, states = ops.recur(inputs, state, STEP), state.clone()
    first = sum(LENGTHS[:3])
    alone = []
    begun = _randn(NUM_SLOTS, 4, 64, 64)
    for token in range(first, first + LENGTHS[3]):
        one = {name: getattr(inputs, name)[token : token + 1] for name in ("query", "key", "value", "decay", "beta")}
        alone.append(ops.recur(replace(inputs, **one), begun, RecurrentStep.of(np.array([0, 1]), np.array([8]), [3], {})))
    assert torch.equal(torch.cat(alone), together[first : first + LENGTHS[3]])
    assert torch.equal(begun[3], states[3])
    assert not torch.equal(states[6], states[7])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("size", [16, 37, 160])
@pytest.mark.parametrize("gates_first", [False, True])
def test_the_gated_norm(ops, dtype: torch.dtype, size: int, gates_first: bool):
    x, gate = 3 * _randn(5, size, dtype=dtype), _randn(5, size, dtype=dtype, seed=1)
    weight = _randn(size, seed=2)
    gates = torch.nn.functional.silu(gate.float())
    normed = x.float() * gates if gates_first else x.float()
    normed = normed * torch.rsqrt((normed * normed).mean(-1, keepdim=True) + 1e-5) * weight
    expected = normed if gates_first else normed * gates
    got = ops.gated_rms_norm(x, gate, weight, 1e-5, gates_first)
    assert got.dtype == dtype
    torch.testing.assert_close(got.float(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
