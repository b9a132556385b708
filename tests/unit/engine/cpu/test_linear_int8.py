"""Products of 8-bit integers: the very numbers of a reference in NumPy, on each instruction set."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from triptych_common.host.cpu import isas_of_this_cpu
from triptych_engine.runner.cpu.kernels import CpuKernels
from triptych_engine.runner.cpu.modules import Int8Linear

GROUP = 64  # as in linear_int8.h
TINIEST = np.float32(1e-30)


def quantized(x: np.ndarray) -> tuple[np.ndarray, np.float32]:
    """Integers and the scale of one group."""
    largest = np.abs(x).max()
    if not np.isfinite(largest):
        return np.zeros(x.shape, np.int64), np.float32("nan")
    if largest < TINIEST:
        return np.zeros(x.shape, np.int64), np.float32(0)
    return np.rint(x * (np.float32(127) / largest)).astype(np.int64), largest / np.float32(127)


def quantized_rows(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    integers, scales = zip(*(quantized(row) for row in x), strict=True)
    return np.stack(integers), np.stack(scales)


def reference(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """x: [rows, in], weight: [out, in], bias: [out], fp32.

    Sums over a group are exact; the rest is fp32, group after group, with one rounding for the last product and its sum.
    """
    rows, out = x.numpy(), np.zeros((len(x), len(weight)), np.float32)
    with np.errstate(all="ignore"):
        for begin in range(0, x.shape[1], GROUP):
            columns, column_scales = quantized_rows(weight.numpy()[:, begin : begin + GROUP])
            integers, scales = quantized_rows(rows[:, begin : begin + GROUP])
            scaled = (integers @ columns.T).astype(np.float32) * scales[:, None]
            out = (scaled.astype(np.longdouble) * column_scales + out).astype(np.float32)
        return torch.from_numpy(out if bias is None else out + bias.numpy())


def linear(kernels: CpuKernels, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    padded = None if bias is None else nn.functional.pad(bias, (0, -len(bias) % kernels.linear_panel))
    return kernels.linear_int8(x, kernels.pack_linear_int8(weight), padded, len(weight))


def case(rows: int, in_features: int, out_features: int, bias: bool, gap: int = 0):
    generator = torch.Generator().manual_seed(rows * 1000 + in_features)
    x = torch.randn(rows, in_features + gap, generator=generator)[:, :in_features]
    weight = torch.randn(out_features, in_features, generator=generator)
    return x, weight, torch.randn(out_features, generator=generator) if bias else None


@given(
    rows=st.integers(1, 70),
    in_features=st.integers(1, 200),
    out_features=st.integers(1, 100),
    bias=st.booleans(),
    gap=st.integers(0, 3),
    scale=st.sampled_from([1e-25, 1.0, 1e30]),
)
@settings(max_examples=60, deadline=None)
def test_the_numbers_of_the_reference(
    kernels: CpuKernels, rows: int, in_features: int, out_features: int, bias: bool, gap: int, scale: float
):
    x, weight, added = case(rows, in_features, out_features, bias, gap)
    x = x * scale if gap == 0 else x
    assert torch.equal(linear(kernels, x, weight, added), reference(x, weight, added))


@pytest.mark.parametrize("isa", isas_of_this_cpu())
@pytest.mark.parametrize("shape", [(1, 576, 96), (13, 1536, 40), (110, 70, 33)])
def test_each_instruction_set_gives_the_same_bits(isa: str, shape: tuple[int, int, int], kernels_for: Callable[[str], CpuKernels]):
    x, weight, bias = case(*shape, bias=True)
    assert torch.equal(linear(kernels_for(isa), x, weight, bias), reference(x, weight, bias))


@pytest.mark.parametrize("isa", isas_of_this_cpu())
def test_the_largest_sums_do_not_overflow(isa: str, kernels_for: Callable[[str], CpuKernels]):
    """All at the ends of their ranges: pairs and quads of products are at the largest that intermediate sums must hold."""
    x = torch.tensor([[-1.0], [1.0]]).expand(2, 4096).contiguous()
    weight = torch.cat([x, x * torch.tensor([1.0, -1.0]).repeat(2048)])
    got = linear(kernels_for(isa), x, weight, None)
    assert torch.equal(got, reference(x, weight, None))
    torch.testing.assert_close(got, x @ weight.T, rtol=1e-6, atol=0)


@pytest.mark.parametrize("in_features", [1, 3, 16, 65, 130])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_row_with_a_value_that_is_not_finite_is_nan_and_others_are_not(kernels: CpuKernels, in_features: int, value: float):
    x, weight, bias = case(15, in_features, 50, bias=True)
    expected = reference(x, weight, bias)
    for position in {0, in_features // 2, in_features - 1}:
        bad = x.clone()
        bad[4, position] = value
        got = linear(kernels, bad, weight, bias)
        assert got[4].isnan().all()
        others = torch.arange(15) != 4
        assert torch.equal(got[others], expected[others])


def test_an_output_whose_weights_are_not_finite_is_nan_and_others_are_not(kernels: CpuKernels):
    x, weight, _ = case(3, 80, 50, bias=False)
    weight[7, 79] = float("inf")
    got = linear(kernels, x, weight, None)
    assert got[:, 7].isnan().all()
    others = torch.arange(50) != 7
    assert torch.equal(got[:, others], reference(x, weight, None)[:, others])


def test_rows_of_zeros_and_of_next_to_nothing_give_the_bias(kernels: CpuKernels):
    _, weight, bias = case(1, 100, 40, bias=True)
    assert bias is not None
    for value in (0.0, -0.0, 1e-31, 1e-37, 1e-45):
        x = torch.full((2, 100), value)
        assert torch.equal(linear(kernels, x, weight, bias), bias.expand(2, -1))
        assert not linear(kernels, x, weight, None).any()
    zeros = linear(kernels, torch.randn(2, 100), torch.zeros(40, 100), bias)
    assert torch.equal(zeros, bias.expand(2, -1))


def test_huge_values_stay_finite_where_their_products_do(kernels: CpuKernels):
    x, weight = torch.full((2, 64), 1e33), torch.full((33, 64), 1e-3)
    got = linear(kernels, x, weight, None)
    torch.testing.assert_close(got.double(), x.double() @ weight.double().T, rtol=1e-6, atol=0)
    assert linear(kernels, x, weight * 1e9, None).eq(float("inf")).all()


@pytest.mark.parametrize("shape", [(64, 576, 200), (5, 1536, 70)])
def test_it_is_near_the_product_of_the_numbers_given(kernels: CpuKernels, shape: tuple[int, int, int]):
    x, weight, bias = case(*shape, bias=True)
    exact = nn.functional.linear(x, weight, bias)
    error = (linear(kernels, x, weight, bias) - exact).square().mean().sqrt() / exact.square().mean().sqrt()
    # Rounding errors are spread evenly: a step, largest / 127, over the square root of 12, for weights and inputs.
    assert 0.002 < error < 0.015


def test_an_outlier_costs_its_own_group_only(kernels: CpuKernels):
    x, weight, _ = case(4, 256, 64, bias=False)
    x[:, 10] = 1000.0
    weight[:, :GROUP] = 0.0  # what shares its scale
    exact = x @ weight.T
    error = (linear(kernels, x, weight, None) - exact).square().mean().sqrt() / exact.square().mean().sqrt()
    assert error < 0.015


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [False, True])
def test_a_layer_computes_with_the_given_weight_until_it_is_quantised(kernels: CpuKernels, dtype: torch.dtype, bias: bool):
    x, weight, added = case(6, 100, 70, bias)
    x, weight, added = x.to(dtype), weight.to(dtype), None if added is None else added.to(dtype)
    layer = Int8Linear(weight, added, kernels)
    # Not dense, and of more than two dimensions.
    inputs = x.view(2, 3, 100).transpose(0, 1)
    assert torch.equal(layer(inputs), nn.functional.linear(inputs, weight, added))
    assert layer.quantize() == (weight.nbytes, layer.weight.nbytes)  # type: ignore[union-attr]
    expected = reference(x.float(), weight.float(), None if added is None else added.float()).to(dtype)
    assert torch.equal(layer(inputs), expected.view(2, 3, 70).transpose(0, 1))
    with pytest.raises(RuntimeError, match="already"):
        layer.quantize()
