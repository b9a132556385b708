"""The CPU kernels other than attention against plain torch, over shapes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.drivers.attention import TOLERANCE
from triptych_engine.runner.cpu.kernels import CpuKernels
from triptych_engine.runner.quantization.formats import Q8, quantize_rows


@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("target", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [1, 15, 64, 577])
def test_rms_norm(kernels: CpuKernels, source: torch.dtype, target: torch.dtype, size: int):
    x, weight = torch.randn(3, 40, size).to(source), torch.randn(size)
    expected = torch.nn.functional.rms_norm(x.float(), (size,), weight, 1e-6).to(target)
    torch.testing.assert_close(kernels.rms_norm(x, weight, 1e-6, target), expected)


@pytest.mark.parametrize("size", [1, 15, 64, 1537])
def test_silu_mul(kernels: CpuKernels, size: int):
    gate_up = (torch.randn(2, 30, 2 * size) * 10).bfloat16()
    gate, up = gate_up.float().chunk(2, -1)
    expected = (torch.nn.functional.silu(gate) * up).bfloat16()
    torch.testing.assert_close(kernels.silu_mul(gate_up), expected)


@given(
    rows=st.integers(0, 220),
    in_features=st.integers(1, 70),
    out_features=st.integers(1, 140),
    bias=st.booleans(),
    gap=st.integers(0, 3),
)
@example(rows=100, in_features=1601, out_features=70, bias=True, gap=1)  # in parts, with AVX-512
@settings(max_examples=60)
def test_linear(emulating: Callable[[str], CpuKernels], rows: int, in_features: int, out_features: int, bias: bool, gap: int):
    kernels = emulating("fp32")  # the other methods round inputs: test_linear_bf16.py
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, in_features + gap, generator=generator)[:, :in_features]
    weight = torch.randn(out_features, in_features, generator=generator).bfloat16()
    added = torch.randn(out_features, generator=generator) if bias else None
    padded = None if added is None else torch.nn.functional.pad(added, (0, -out_features % kernels.linear_panel))
    expected = torch.nn.functional.linear(x.double(), weight.double(), None if added is None else added.double())
    got = kernels.linear(x, kernels.pack_linear(weight), padded, out_features)
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-5 + 1e-7 * in_features)


def test_a_weight_that_is_not_dense_is_packed_all_the_same(kernels: CpuKernels):
    for size in range(20, 120):
        weight = torch.randn(size, 30, generator=torch.Generator().manual_seed(size))
        dense = weight.bfloat16()
        across = dense.t().contiguous().t()
        assert not across.is_contiguous()
        assert torch.equal(kernels.pack_linear(across), kernels.pack_linear(dense))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [16, 100, 576])
def test_add_rms_norm(kernels: CpuKernels, dtype: torch.dtype, size: int):
    x, added, weight = torch.randn(37, size), torch.randn(37, size).to(dtype), torch.rand(size)
    total, normed = kernels.add_rms_norm(x, added, weight, 1e-5)
    torch.testing.assert_close(total, x + added.float(), rtol=0, atol=0)
    expected = torch.nn.functional.rms_norm(total, (size,), weight, 1e-5)
    torch.testing.assert_close(normed, expected.to(dtype), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    assert normed.dtype == dtype


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(64, 64), (64, 16), (20, 10)])
@pytest.mark.parametrize("with_norms", [False, True])
def test_qk_norm_rope(kernels: CpuKernels, dtype: torch.dtype, head_dim: int, rotary_dim: int, with_norms: bool):
    num_tokens, num_q_heads, num_kv_heads = 11, 6, 2
    num_heads = num_q_heads + num_kv_heads
    qkv = torch.randn(num_tokens, (num_heads + num_kv_heads) * head_dim).to(dtype)
    angles = torch.rand(num_tokens, rotary_dim // 2).repeat(1, 2)
    cos, sin = angles.cos(), angles.sin()
    norms = (torch.rand(head_dim), torch.rand(head_dim), 1e-6) if with_norms else None
    heads = qkv.float().view(num_tokens, -1, head_dim)[:, :num_heads].clone()
    if norms is not None:
        heads[:, :num_q_heads] = torch.nn.functional.rms_norm(heads[:, :num_q_heads], (head_dim,), norms[0], norms[2])
        heads[:, num_q_heads:] = torch.nn.functional.rms_norm(heads[:, num_q_heads:], (head_dim,), norms[1], norms[2])
    rotated = heads[..., :rotary_dim]
    first, second = rotated.chunk(2, -1)
    heads[..., :rotary_dim] = rotated * cos[:, None] + torch.cat([-second, first], -1) * sin[:, None]
    got = kernels.qk_norm_rope(qkv, cos, sin, num_q_heads, num_kv_heads, head_dim, norms)
    torch.testing.assert_close(got, heads, rtol=1e-5, atol=1e-5)


def test_threads_that_compute_at_once_do_not_write_to_each_others_workspace(kernels: CpuKernels):
    """Two engines in one process share the kernels, and calls release the GIL."""
    generator = torch.Generator().manual_seed(0)
    packed = kernels.quant.pack(Q8, 300, 256, [quantize_rows(torch.randn(300, 256, generator=generator), Q8)])
    inputs = [torch.randn(64, 256, generator=generator) for _ in range(2)]
    expected = [kernels.quant.linear(x, packed, None) for x in inputs]

    def num_wrong(index: int) -> int:
        torch.set_num_threads(1)
        return sum(not torch.equal(kernels.quant.linear(inputs[index], packed, None), expected[index]) for _ in range(1000))

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(num_wrong, range(2))) == [0, 0]
