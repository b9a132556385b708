"""Products with quantised weights: the very numbers of a reference in NumPy, for each format on each instruction set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.builders.quantized import LARGEST_FLOAT, random_rows
from support.cpu_levels import LEVELS
from triptych_engine.runner.cpu.kernels import CpuKernels
from triptych_engine.runner.cpu.quant_kernels import PackedQuant
from triptych_engine.runner.quantization.formats import (
    FORMATS,
    GROUP,
    ON_THE_FLY,
    Q8,
    TABLE,
    QuantFormat,
    QuantizedRows,
    quantize_rows,
)

TINIEST = np.float32(1e-30)
KernelsOf = Callable[[str], CpuKernels]
formats = pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)


def quantized_inputs(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A group of each row as integers, of which the largest has 16 bits and the others 8, and the scale of each row."""
    integers, scales = np.zeros(x.shape, np.int64), np.zeros(len(x), np.float32)
    one, most, most_of_largest = np.float32(1), np.float32(127), np.float32(32767)
    for row, (values, into) in enumerate(zip(x, integers, strict=True)):
        # The last bits of a magnitude do not count: the kernels have the value's place there.
        cut = (values.astype(np.float32).view(np.uint32) & np.uint32(0x7FFFFFE0)).view(np.float32)
        second, largest = np.sort(np.append(np.float32(0), cut))[-2:]
        if not np.isfinite(values).all():
            scales[row] = np.nan
        elif largest >= TINIEST:
            scales[row] = max(second * (one / most), largest * (one / most_of_largest))
            into[:] = np.rint(values * (one / scales[row]))
    return integers, scales


def fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    return (a.astype(np.longdouble) * b + c).astype(np.float32)


def parts(rows: QuantizedRows) -> tuple[np.ndarray, np.ndarray, int]:
    """Scale and minimum of each part of each output, [out, parts], and the number of inputs in a part."""
    size = GROUP // max(rows.format.scales, 1)
    count = -(-rows.values.shape[1] // GROUP) * GROUP // size

    def spread(values: torch.Tensor) -> torch.Tensor:
        return values.repeat_interleave(rows.format.block // size, 1)[:, :count]

    scale = rows.scales.float()
    if rows.format.minimum == "half":
        assert rows.minimums is not None
        minimum = rows.minimums.float()
    elif rows.format.minimum == "zero":
        assert rows.minimums is not None
        minimum = -(scale * rows.minimums.float())
    else:
        minimum = scale * -float(12 if rows.format.minimum == "table" else 2 ** (rows.format.bits - 1))
    scale, minimum = spread(scale), spread(minimum)
    if rows.part_scales is not None:
        scale = scale * rows.part_scales.flatten(1)
        minimum = minimum * rows.part_scales.flatten(1) if rows.part_minimums is None else -minimum * rows.part_minimums.flatten(1)
    return scale.numpy(), minimum.numpy(), size


def reference(x: torch.Tensor, weight: QuantizedRows, bias: torch.Tensor | None) -> torch.Tensor:
    """x: [rows, in], bias: [out], fp32. Sums over a part are exact; the rest is fp32, in order."""
    out = np.zeros((len(x), len(weight.values)), np.float32)
    if weight.format.is_float:
        out = out if bias is None else out + bias.numpy()
        for inputs, weights in zip(x.numpy().T, weight.dequantize().numpy().T, strict=True):
            out = fma(np.broadcast_to(inputs[:, None], out.shape), weights[None], out)
        return torch.from_numpy(out)
    scale, minimum, size = parts(weight)
    values = weight.values.numpy().astype(np.int64)
    values = np.array(TABLE)[values] + 12 if weight.format.minimum == "table" else values
    with np.errstate(all="ignore"):
        for begin in range(0, x.shape[1], GROUP):
            integers, scales = quantized_inputs(x.numpy()[:, begin : begin + GROUP])
            scaled = np.zeros_like(out)
            for offset in range(0, GROUP, size):
                part, some = (begin + offset) // size, slice(begin + offset, begin + offset + size)
                inputs = integers[:, offset : offset + size]
                removed = 2 ** (weight.format.bits - 1) * inputs.sum(1, keepdims=True) if weight.format.minimum == "offset" else 0
                scaled = fma((inputs @ values[:, some].T - removed).astype(np.float32), scale[None, :, part], scaled)
            out = fma(scaled, np.broadcast_to(scales[:, None], out.shape), out)
            if weight.format.minimum != "offset":  # these have one part
                sums = scales * integers.sum(1).astype(np.float32)
                out = fma(np.broadcast_to(sums[:, None], out.shape), minimum[None, :, begin // size], out)
        return torch.from_numpy(out if bias is None else out + bias.numpy())


def pack(kernels: CpuKernels, weight: QuantizedRows) -> PackedQuant:
    return kernels.quant.pack(weight.format, *weight.values.shape, [weight])


def linear(kernels: CpuKernels, x: torch.Tensor, weight: QuantizedRows, bias: torch.Tensor | None) -> torch.Tensor:
    return kernels.quant.linear(x, pack(kernels, weight), None if bias is None else kernels.quant.pad_bias([bias]))


def case(form: QuantFormat, rows: int, in_features: int, out_features: int, bias: bool, gap: int = 0):
    """A few inputs are up to a thousand times as large as the others, as in models."""
    generator = torch.Generator().manual_seed(rows * 1000 + in_features)
    x = torch.randn(rows, in_features + gap, generator=generator)[:, :in_features]
    x = torch.where(torch.rand(x.shape, generator=generator) < 0.02, 10 ** torch.randint(1, 4, x.shape, generator=generator), 1) * x
    return x, random_rows(form, out_features, in_features), torch.randn(out_features, generator=generator) if bias else None


@given(
    form=st.sampled_from(FORMATS),
    rows=st.integers(1, 70),
    in_features=st.integers(1, 600),
    out_features=st.integers(1, 100),
    bias=st.booleans(),
    gap=st.integers(0, 3),
    scale=st.sampled_from([1e-25, 1.0, 1e30]),
)
@settings(max_examples=60)
def test_the_numbers_of_the_reference(
    kernels: CpuKernels, form: QuantFormat, rows: int, in_features: int, out_features: int, bias: bool, gap: int, scale: float
):
    x, weight, added = case(form, rows, in_features, out_features, bias, gap)
    x = x * scale if gap == 0 else x
    assert torch.equal(linear(kernels, x, weight, added), reference(x, weight, added))


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("shape", [(1, 576, 96), (13, 1536, 40), (70, 300, 33)])
@formats
def test_each_instruction_set_gives_the_same_bits(form: QuantFormat, isa: str, shape: tuple[int, int, int], kernels_for: KernelsOf):
    x, weight, bias = case(form, *shape, bias=True)
    assert torch.equal(linear(kernels_for(isa), x, weight, bias), reference(x, weight, bias))


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("sign", [-1.0, 1.0])
@formats
def test_the_largest_sums_do_not_overflow(form: QuantFormat, sign: float, isa: str, kernels_for: KernelsOf):
    """All at the ends of their ranges: pairs and quads of products are at the largest that intermediate sums must hold."""
    weight = random_rows(form, 16, 4096)
    largest = LARGEST_FLOAT if form.is_float else 7 if form.minimum == "table" else (1 << form.bits) - 1
    weight.values.fill_(largest)
    x = torch.full((2, 4096), sign)
    x[1, 5::GROUP] *= 32767 / 127  # the largest of a group has 16 bits
    assert torch.equal(linear(kernels_for(isa), x, weight, None), reference(x, weight, None))


@pytest.mark.parametrize("isa", LEVELS)
@given(form=st.sampled_from(FORMATS), rows=st.integers(1, 60), in_features=st.integers(1, 600), seed=st.integers(0, 9))
@settings(max_examples=40)
def test_what_is_packed_is_unpacked(isa: str, kernels_for: KernelsOf, form: QuantFormat, rows: int, in_features: int, seed: int):
    kernels, weight = kernels_for(isa), random_rows(form, rows, in_features, seed)
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))
    assert torch.equal(kernels.quant.unpack(pack(kernels, weight), order), weight.dequantize()[order])


@formats
def test_rows_come_in_portions(form: QuantFormat, kernels: CpuKernels):
    whole = random_rows(form, 70, 512)

    def some(begin: int, end: int) -> QuantizedRows:
        names = ("values", "scales", "minimums", "part_scales", "part_minimums")
        given = {name: getattr(whole, name) for name in names}
        return replace(whole, **{name: None if tensor is None else tensor[begin:end] for name, tensor in given.items()})

    packed = kernels.quant.pack(form, 70, 512, (some(begin, begin + 32) for begin in (0, 32, 64)))
    assert torch.equal(packed.memory[0], pack(kernels, whole).memory[0])
    with pytest.raises(ValueError, match="64 rows of 70"):
        kernels.quant.pack(form, 70, 512, (some(begin, begin + 32) for begin in (0, 32)))


#: Bits per weight of the same weights in a GGUF file, or in a checkpoint with groups of 128.
FILE_BITS = {
    "q4": 4.5, "q4-min": 5, "q5": 5.5, "q5-min": 6, "q8": 8.5, "q4-nested": 4.5, "q5-nested": 5.5, "q6-nested": 6.5625,
    "q4-zero": 4 + 20 / 128, "q4-zero-32": 4 + 20 / 32, "f8": 8, "f4": 4.25,
}  # fmt: skip


@formats
def test_packed_weights_take_hardly_more_than_in_their_file(form: QuantFormat, kernels: CpuKernels):
    bits = 8 * pack(kernels, random_rows(form, 64, 1024)).nbytes / (64 * 1024)
    # In place of an exponent of 8 bits, the scale has 16.
    assert bits <= (1.06 if form.minimum == "table" else 1.04) * FILE_BITS[form.name]


@given(
    kinds=st.lists(st.tuples(st.sampled_from(FORMATS), st.integers(1, 50)), min_size=2, max_size=3),
    rows=st.integers(1, 9),
    bias=st.booleans(),
)
@settings(max_examples=40)
def test_a_product_of_parts_in_different_formats(kernels: CpuKernels, kinds: list[tuple[QuantFormat, int]], rows: int, bias: bool):
    """Popular GGUF files store the value projection with more bits than queries and keys."""
    weights = [random_rows(form, out_features, 320, seed) for seed, (form, out_features) in enumerate(kinds)]
    biases = [torch.randn(len(weight.values)) for weight in weights] if bias else [None] * len(weights)
    x = torch.randn(rows, 320)
    joined = PackedQuant.join([pack(kernels, weight) for weight in weights])
    added = kernels.quant.pad_bias([one for one in biases if one is not None]) if bias else None
    for multiply in (kernels.quant.linear, kernels.quant.linear_exact):
        alone = [
            multiply(x, pack(kernels, weight), None if one is None else kernels.quant.pad_bias([one]))
            for weight, one in zip(weights, biases, strict=True)
        ]
        assert torch.equal(multiply(x, joined, added), torch.cat(alone, 1))


@formats
@pytest.mark.parametrize("rows", [1, 7, 40])
def test_without_rounded_inputs_it_is_the_product_with_the_dequantised_weight(form: QuantFormat, rows: int, kernels: CpuKernels):
    x, weight, bias = case(form, rows, 577, 70, bias=True)
    assert bias is not None
    expected = torch.nn.functional.linear(x.double(), weight.dequantize().double(), bias.double())
    got = kernels.quant.linear_exact(x, pack(kernels, weight), kernels.quant.pad_bias([bias]))
    assert (got - expected).norm() < 1e-6 * expected.norm()
    rounded = linear(kernels, x, weight, bias)
    assert (rounded - expected).norm() < 0.01 * expected.norm()


@pytest.mark.parametrize("in_features", [1, 3, 16, 65, 130])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_row_with_a_value_that_is_not_finite_is_nan_and_others_are_not(kernels: CpuKernels, in_features: int, value: float):
    x, weight, bias = case(Q8, 15, in_features, 50, bias=True)
    expected = reference(x, weight, bias)
    for position in {0, in_features // 2, in_features - 1}:
        bad = x.clone()
        bad[4, position] = value
        got = linear(kernels, bad, weight, bias)
        assert got[4].isnan().all()
        others = torch.arange(15) != 4
        assert torch.equal(got[others], expected[others])


def test_rows_of_zeros_and_of_next_to_nothing_give_the_bias(kernels: CpuKernels):
    _, weight, bias = case(Q8, 1, 100, 40, bias=True)
    assert bias is not None
    for value in (0.0, -0.0, 1e-31, 1e-37, 1e-45):
        x = torch.full((2, 100), value)
        assert torch.equal(linear(kernels, x, weight, bias), bias.expand(2, -1))
        assert not linear(kernels, x, weight, None).any()


@pytest.mark.parametrize("form", ON_THE_FLY.values(), ids=lambda form: form.name)
def test_a_weight_is_quantised_to_the_nearest_values(form: QuantFormat):
    weight = torch.randn(40, 320, generator=torch.Generator().manual_seed(0))[:, :300]
    weight[3, 64:96] = 0
    weight[4, 64:96] = 0.75
    rows = quantize_rows(weight, form)
    blocks = torch.nn.functional.pad(weight, (0, 20)).view(40, -1, 32)
    step = blocks.abs().amax(-1) / 127 if form.minimum == "offset" else (blocks.amax(-1) - blocks.amin(-1)) / 15
    error = torch.nn.functional.pad(rows.dequantize() - weight, (0, 20)).view(40, -1, 32)
    # Of a value that is anywhere between two steps, and at most half of one away. Scale and minimum are rounded too.
    root_mean_square = error.square().mean(-1).sqrt()
    assert (root_mean_square <= 0.5 * step + 0.001).all()
    assert (root_mean_square / step.clamp(min=1e-9)).median() < 1.02 / 12**0.5
    assert rows.dequantize()[3, 64:96].eq(0).all()
    assert rows.dequantize()[4, 64:96].sub(0.75).abs().max() < 0.001


def test_weights_of_4_bits_need_not_be_symmetric_and_are_closer_than_from_smallest_to_largest():
    weight = torch.randn(64, 256, generator=torch.Generator().manual_seed(0)) + 5
    step = (weight.view(64, -1, 32).amax(-1) - weight.view(64, -1, 32).amin(-1))[..., None] / 15
    low = weight.view(64, -1, 32).amin(-1, keepdim=True)
    plain = (((weight.view(64, -1, 32) - low) / step).round() * step + low).view(64, -1)
    got = quantize_rows(weight, ON_THE_FLY["int4"]).dequantize()
    assert (got - weight).norm() < 0.97 * (plain - weight).norm()


@pytest.mark.parametrize("form", ON_THE_FLY.values(), ids=lambda form: form.name)
def test_a_weight_that_is_not_finite_stays_so(form: QuantFormat):
    weight = torch.randn(40, 300, generator=torch.Generator().manual_seed(0))
    weight[5, 7] = float("inf")
    assert not quantize_rows(weight, form).dequantize()[5, :32].isfinite().all(), "a broken weight must not look like a good one"
    weight[5, 7] = -1e9  # fp16 does not hold it
    assert not quantize_rows(weight, form).dequantize()[5, :32].isfinite().all()
