"""Products of the heads of an attention: each head has a weight of its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from triptych_engine.runner.cpu.kernels import LINEAR_METHODS, CpuKernels
from triptych_engine.runner.cpu.linear.heads import KernelHeads, TorchHeads, pack_heads

Emulating = Callable[[str], CpuKernels]
TOLERANCE = {True: 2e-2, False: 1e-4}


def numbers(*size: int) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(sum(size)))


@pytest.mark.parametrize("method", LINEAR_METHODS)
@pytest.mark.parametrize("rounds", [True, False])
@pytest.mark.parametrize("rows", [1, 3, 17, 150])
def test_kernels_multiply_each_head_by_its_weight(emulating: Emulating, method: str, rounds: bool, rows: int):
    """Also into a part of a tensor, and from one."""
    weight = numbers(5, 70, 48).bfloat16()
    product = KernelHeads(weight, emulating(method), rounds_inputs=rounds)
    x, out = numbers(rows, 5, 60)[..., 6:54], torch.full((rows, 5, 80), 7.0)
    product(x, out[..., 3:73])
    expected = torch.einsum("rhi,hoi->rho", x, weight.float())
    torch.testing.assert_close(out[..., 3:73], expected, rtol=TOLERANCE[rounds], atol=10 * TOLERANCE[rounds])
    assert (out[..., :3] == 7).all()
    assert (out[..., 73:] == 7).all()
    for row in {0, rows - 1}:  # a row's result does not depend on the others
        one = torch.empty(1, 5, 70)
        product(x[row : row + 1], one)
        assert torch.equal(one[0], out[row, :, 3:73])


@pytest.mark.parametrize("method", LINEAR_METHODS)
@pytest.mark.parametrize("rounds", [True, False])
def test_some_heads_with_the_same_inputs(emulating: Emulating, method: str, rounds: bool):
    weight = numbers(6, 32, 64).bfloat16()
    product = KernelHeads(weight, emulating(method), rounds_inputs=rounds)
    x, out = numbers(20, 1, 64), torch.empty(20, 3, 32)
    product(x, out, 2)
    expected = torch.einsum("ri,hoi->rho", x[:, 0], weight[2:5].float())
    torch.testing.assert_close(out, expected, rtol=TOLERANCE[rounds], atol=10 * TOLERANCE[rounds])


@pytest.mark.parametrize("batch_invariant", [True, False])
def test_without_kernels_it_is_the_same(batch_invariant: bool):
    weight, x = numbers(6, 32, 64), numbers(9, 6, 64)
    product = TorchHeads(weight, batch_invariant=batch_invariant)
    whole, some = torch.empty(9, 6, 32), torch.empty(9, 2, 32)
    product(x, whole)
    torch.testing.assert_close(whole, torch.einsum("rhi,hoi->rho", x, weight))
    product(x[:, :1], some, 3)
    torch.testing.assert_close(some, torch.einsum("ri,hoi->rho", x[:, 0], weight[3:5]))


def test_weights_are_packed_as_those_of_linear_layers(kernels: CpuKernels):
    exact = numbers(2, 16, 16)
    assert isinstance(pack_heads(exact, kernels), TorchHeads)
    assert isinstance(pack_heads(exact.bfloat16().float(), kernels), KernelHeads)
    assert isinstance(pack_heads(exact.half(), kernels), TorchHeads)
    assert isinstance(pack_heads(exact, None), TorchHeads)
