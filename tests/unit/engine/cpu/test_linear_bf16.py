"""Products by instructions for bfloat16, in a copy of those in software: all but the instructions themselves."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import pad
from triptych_engine.runner.cpu.kernels import CpuKernels

METHODS = ["dot", "tiles"]
Emulating = Callable[[str], CpuKernels]


def product(kernels: CpuKernels, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    padded = None if bias is None else pad(bias, (0, -len(bias) % kernels.linear_panel))
    kernels.workspace(len(x), 10_000)
    kernels._workspace.memory.fill_(torch.nan)  # beyond the rows and in place of what is not written
    return kernels.linear(x, kernels.pack_linear(weight), padded, len(weight))


@pytest.mark.parametrize("method", METHODS)
def test_the_method_is_known(emulating: Emulating, method: str):
    assert emulating(method).linear_method == method


def test_a_workspace_made_in_inference_mode_serves_outside_of_it(emulating: Emulating):
    kernels = emulating("dot")
    kernels._workspace.memory = torch.empty(0)
    with torch.inference_mode():
        kernels.workspace(3, 100)
    assert not kernels._workspace.memory.is_inference()


@pytest.mark.parametrize("method", METHODS)
@given(
    rows=st.integers(0, 220),
    in_features=st.integers(1, 100),
    out_features=st.integers(1, 140),
    bias=st.booleans(),
    gap=st.integers(0, 3),
)
@settings(max_examples=60)
def test_products_of_whole_numbers_are_exact(
    emulating: Emulating, method: str, rows: int, in_features: int, out_features: int, bias: bool, gap: int
):
    """Sums below 2^24 are whatever their order: each weight meets its input, no other, and once."""
    generator = torch.Generator().manual_seed(rows)

    def whole(*shape: int) -> torch.Tensor:
        return torch.randint(-100, 101, shape, generator=generator).float()

    x, weight, added = whole(rows, in_features + gap)[:, :in_features], whole(out_features, in_features), whole(out_features)
    expected = x @ weight.T + (added if bias else 0)
    got = product(emulating(method), x, weight.bfloat16(), added if bias else None)
    assert torch.equal(got, expected)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("rows", [1, 3, 4, 7, 8, 16, 17, 33, 100])
def test_products_of_any_numbers(emulating: Emulating, method: str, rows: int):
    generator = torch.Generator().manual_seed(rows)
    x, weight = torch.randn(rows, 577, generator=generator), torch.randn(100, 577, generator=generator).bfloat16()
    got = product(emulating(method), x, weight)
    torch.testing.assert_close(got.double(), x.bfloat16().double() @ weight.double().T, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("rows", [1, 3, 4, 40])
def test_inputs_are_rounded_to_nearest_even_however_few_they_are(emulating: Emulating, method: str, rows: int):
    bits = torch.randint(0x3F000000, 0x41000000, (rows, 96), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    bits[:, ::3] = bits[:, ::3] & ~0xFFFF | 0x8000  # halfway between two
    x = bits.view(torch.float32)
    assert torch.equal(product(emulating(method), x, torch.eye(96).bfloat16()), x.bfloat16().float())


@pytest.mark.parametrize("method", METHODS)
def test_a_row_that_is_not_a_number_spoils_no_other(emulating: Emulating, method: str):
    x, weight = torch.ones(21, 40), torch.ones(50, 40).bfloat16()
    x[3, 7] = torch.nan
    got = product(emulating(method), x, weight)
    assert got[3].isnan().all()
    assert torch.equal(got[torch.arange(21) != 3], torch.full((20, 50), 40.0))
