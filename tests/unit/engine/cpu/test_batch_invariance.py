"""The kernels' results for a row are the same bits, whatever other rows, sequences and chunks are computed with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.builders.quantized import random_rows
from support.cpu_levels import LEVELS
from support.drivers.attention import metadata
from triptych_engine.runner.attention.paged import LayerShape
from triptych_engine.runner.cpu.attention import CpuAttention
from triptych_engine.runner.cpu.kernels import LINEAR_METHODS, CpuKernels
from triptych_engine.runner.quantization.formats import FORMATS, QuantFormat

KernelsOf = Callable[..., CpuKernels]
#: Instruction sets of this CPU, and emulated ones; see the fixtures.
VARIANTS = [*LEVELS, *LINEAR_METHODS]
ROWS = (1, 2, 3, 4, 5, 11, 12, 13, 31, 47, 48, 64, 96, 97)
BLOCK_SIZE = 16
NUM_TOKENS = 420


@pytest.fixture(params=VARIANTS)
def variant(request: pytest.FixtureRequest, kernels_for: KernelsOf, emulating: Callable[[str], CpuKernels]) -> CpuKernels:
    return emulating(request.param) if request.param in LINEAR_METHODS else kernels_for(request.param)


@pytest.mark.parametrize("name", ["linear", "linear_wide"])
@pytest.mark.parametrize(("out_features", "in_features"), [(130, 577), (64, 1600)])
def test_a_product_of_a_row(variant: CpuKernels, name: str, out_features: int, in_features: int):
    generator = torch.Generator().manual_seed(0)
    weight, x = torch.randn(out_features, in_features, generator=generator), torch.randn(600, in_features, generator=generator)
    packed = variant.pack_linear(weight.bfloat16())
    bias = torch.randn(-(-out_features // variant.linear_panel) * variant.linear_panel, generator=generator)
    multiply = getattr(variant, name)
    whole = multiply(x, packed, bias, out_features)
    for rows in ROWS:
        for first in (0, 17):
            assert torch.equal(multiply(x[first : first + rows], packed, bias, out_features), whole[first : first + rows])


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_a_product_of_a_row_with_quantised_weights(isa: str, form: QuantFormat, kernels_for: KernelsOf):
    kernels, x = kernels_for(isa).quant, torch.randn(150, 577, generator=torch.Generator().manual_seed(0))
    packed = kernels.pack(form, 70, 577, [random_rows(form, 70, 577)])
    whole = kernels.linear(x, packed, None)
    for rows in ROWS:
        for first in (0, 17):
            assert torch.equal(kernels.linear(x[first : first + rows], packed, None), whole[first : first + rows])


def attention_of(
    kernels: CpuKernels, dtype: torch.dtype, shape: LayerShape, chunks: list[int], num_others: int, options: dict[str, Any]
) -> torch.Tensor:
    """The attention of a prompt that is computed in chunks, beside as many other sequences; [NUM_TOKENS, heads, v_head_dim]."""
    backend = CpuAttention(kernels)
    lengths = [NUM_TOKENS, *(1 + 7 * i for i in range(num_others))]  # of the sequences before the last chunk
    num_blocks = [-(-(length + len(chunks)) // BLOCK_SIZE) for length in lengths]
    backend.allocate({0: shape}, sum(num_blocks), BLOCK_SIZE, dtype)
    table = np.zeros((len(lengths), max(num_blocks)), np.int32)
    for i, count in enumerate(num_blocks):
        table[i, :count] = np.arange(count) + sum(num_blocks[:i])

    def tensors(seed: int, num_tokens: int) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        sizes = (
            (2 * shape.num_kv_heads, shape.head_dim),
            (shape.num_kv_heads, shape.head_dim),
            (shape.num_kv_heads, shape.v_head_dim),
        )
        return [torch.randn(num_tokens, *size, generator=generator).to(dtype) for size in sizes]

    def step(parts: list[list[torch.Tensor]], rows: list[int], computed: list[int]) -> torch.Tensor:
        news = [len(part[0]) for part in parts]
        backend.begin(metadata(news, computed, np.ascontiguousarray(table[rows]), BLOCK_SIZE))
        joined = [torch.cat(each) for each in zip(*parts, strict=True)]
        return backend.forward(0, *joined, **({"scaling": 0.2, "window": 0, "softcap": 0.0, "sinks": None} | options))

    own, outputs, done = tensors(0, NUM_TOKENS), [], 0
    others = range(1, len(lengths))
    for i in others:  # their prompts
        step([tensors(i, lengths[i])], [i], [0])
    for number, size in enumerate(chunks):
        parts = [[part[done : done + size] for part in own], *(tensors(1000 * number + i, 1) for i in others)]
        outputs.append(step(parts, [0, *others], [done, *(lengths[i] + number for i in others)])[:size])
        done += size
    return torch.cat(outputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("shape", "options"),
    [
        (LayerShape(3, 64, 64), {}),
        (LayerShape(2, 33, 16), {"window": 150, "softcap": 20.0}),
        (LayerShape(2, 64, 48), {"window": 40, "sinks": torch.linspace(-1, 1, 4)}),
        (LayerShape(1, 40, 32, values_in_keys=True), {}),
    ],
)
def test_attention_of_a_token(variant: CpuKernels, dtype: torch.dtype, shape: LayerShape, options: dict[str, Any]):
    whole = attention_of(variant, dtype, shape, [NUM_TOKENS], 0, options)
    cases = [([1] * NUM_TOKENS, 0), ([200, *[3] * 73, 1], 3), ([390, *[1] * 30], 40), ([130, 290], 0), ([17, 255, 148], 9)]
    for chunks, num_others in cases:
        assert torch.equal(attention_of(variant, dtype, shape, chunks, num_others, options), whole), (chunks, num_others)
