"""Many rows times quantised weights by bfloat16 tiles, in a copy of them in software, and on the CPU if it has them.

Without tiles, floats of 8 bits are multiplied by bfloat16 vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.builders.engine import a_tiny_llama_config, save_random_model
from support.builders.quantized import random_rows
from transformers import LlamaForCausalLM
from triptych.errors import UnsupportedModelError
from triptych_engine.runner import builder
from triptych_engine.runner.config import RunnerConfig
from triptych_engine.runner.cpu.kernels import CpuKernels
from triptych_engine.runner.cpu.quant_kernels import PackedQuant
from triptych_engine.runner.quantization.formats import F8, FORMATS, Q4, Q8, QuantFormat, QuantizedRows

Emulating = Callable[[str], CpuKernels]
#: An input that is rounded times a weight that is cut.
TOLERANCE = 0.013
#: Rounding of a block's minimum, in steps from one value to the next.
STEPS = 2**-8
FEWEST_ROWS, FEWEST_ROWS_OF_VECTORS = 10, 12  # kTileRows and kFloatPairRows in linear_quant.cpp
formats = pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)


@pytest.fixture(params=["emulated", "own"])
def kernels_with_tiles(request: pytest.FixtureRequest, emulating: Emulating, kernels: CpuKernels) -> CpuKernels:
    found = emulating("tiles") if request.param == "emulated" else kernels
    if found.linear_method != "tiles":
        pytest.skip("this CPU has no tiles")
    return found


def pack(kernels: CpuKernels, *weights: QuantizedRows) -> PackedQuant:
    return PackedQuant.join([kernels.quant.pack(weight.format, *weight.values.shape, [weight]) for weight in weights])


def product(kernels: CpuKernels, x: torch.Tensor, packed: PackedQuant, bias: torch.Tensor | None = None) -> torch.Tensor:
    kernels.workspace(len(x), 10_000)
    kernels._workspace.memory.fill_(torch.nan)  # beyond the rows and in place of what is not written
    return kernels.quant_fast.linear(x, packed, bias)


def is_close(got: torch.Tensor, x: torch.Tensor, weight: QuantizedRows) -> bool:
    exact = weight.dequantize()
    parts = 1.0 if weight.part_scales is None else float(weight.part_scales.abs().max())
    step = 0.0 if weight.format.is_float else float(weight.scales.float().abs().max()) * parts
    most = TOLERANCE * x.abs() @ exact.abs().T + STEPS * step * x.abs().sum(1, keepdim=True) + 1e-6  # of adding a bias
    return bool(((got - x @ exact.T).abs() <= most).all())


@given(
    form=st.sampled_from(FORMATS),
    rows=st.integers(1, 120),
    in_features=st.integers(1, 600),
    out_features=st.integers(1, 100),
    has_bias=st.booleans(),
    gap=st.integers(0, 3),
)
@settings(max_examples=60)
def test_products_with_the_dequantised_weights(
    emulating: Emulating, form: QuantFormat, rows: int, in_features: int, out_features: int, has_bias: bool, gap: int
):
    kernels, generator = emulating("tiles"), torch.Generator().manual_seed(rows)
    x = torch.randn(rows, in_features + gap, generator=generator)[:, :in_features]
    weight, bias = random_rows(form, out_features, in_features), torch.randn(out_features, generator=generator)
    got = product(kernels, x, pack(kernels, weight), kernels.quant.pad_bias([bias]) if has_bias else None)
    assert is_close(got - (bias if has_bias else 0), x, weight)


@pytest.mark.parametrize(
    ("rows", "in_features", "out_features"),
    [(40, 3100, 300), (1100, 100, 70), (130, 8192, 40)],
    ids=["long chunks", "blocks of rows", "both"],
)
@pytest.mark.parametrize("form", [Q4, Q8, FORMATS[7], F8], ids=lambda form: form.name)
def test_large_products(form: QuantFormat, rows: int, in_features: int, out_features: int, kernels_with_tiles: CpuKernels):
    """Sums that are stored between chunks of inputs, rows in several blocks, threads that go from pair to pair of panels."""
    x, weight = torch.randn(rows, in_features), random_rows(form, out_features, in_features)
    assert is_close(product(kernels_with_tiles, x, pack(kernels_with_tiles, weight)), x, weight)


@formats
def test_each_weight_meets_its_input(form: QuantFormat, kernels_with_tiles: CpuKernels):
    """Rows that are a single one each: the result is the weight."""
    weight = random_rows(form, 50, 300)
    got = product(kernels_with_tiles, torch.eye(300), pack(kernels_with_tiles, weight)).T
    step = weight.dequantize().abs().max() * 2**-7
    assert (got - weight.dequantize()).abs().max() < step


@formats
def test_weights_that_are_cut_are_no_smaller_on_average(form: QuantFormat, kernels_with_tiles: CpuKernels):
    weight = random_rows(form, 64, 2048)
    exact = weight.dequantize()
    sign = exact.sign()
    total = sum(
        (product(kernels_with_tiles, row.expand(FEWEST_ROWS, -1), pack(kernels_with_tiles, weight))[0, n])
        for n, row in enumerate(sign)
    )
    assert abs(float(total / exact.abs().sum()) - 1) < 5e-4


@pytest.mark.parametrize("rows", [FEWEST_ROWS, 16, 33, 70])
def test_a_product_of_parts_in_different_formats(rows: int, kernels_with_tiles: CpuKernels):
    """Parts end within a panel, and have odd and even numbers of panels."""
    kernels, x = kernels_with_tiles, torch.randn(rows, 320)
    weights = [random_rows(form, out_features, 320) for form, out_features in ((Q4, 50), (Q8, 16), (FORMATS[7], 33), (Q4, 64))]
    biases = [torch.randn(len(weight.values)) for weight in weights]
    got = product(kernels, x, pack(kernels, *weights), kernels.quant.pad_bias(biases))
    for weight, bias, some in zip(weights, biases, got.split([len(bias) for bias in biases], 1), strict=True):
        assert is_close(some - bias, x, weight)


@formats
def test_few_rows_are_computed_as_without_tiles(form: QuantFormat, kernels_with_tiles: CpuKernels):
    kernels, packed = kernels_with_tiles, pack(kernels_with_tiles, random_rows(form, 70, 300))
    for rows in (1, FEWEST_ROWS - 1):
        x = torch.randn(rows, 300)
        is_same = torch.equal(product(kernels, x, packed), kernels.quant.linear(x, packed, None))
        assert is_same != form.is_float, "floats always use tiles"
    x = torch.randn(FEWEST_ROWS, 300)
    assert not torch.equal(product(kernels, x, packed), kernels.quant.linear(x, packed, None))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_row_with_a_value_that_is_not_finite_leaves_the_others_alone(value: float, kernels_with_tiles: CpuKernels):
    packed, x = pack(kernels_with_tiles, random_rows(Q8, 50, 130)), torch.randn(20, 130)
    expected, bad = product(kernels_with_tiles, x, packed), x.clone()
    bad[4, 129] = value
    got, others = product(kernels_with_tiles, bad, packed), torch.arange(20) != 4
    assert not got[4].isfinite().any()
    assert torch.equal(got[others], expected[others])


@given(
    rows=st.integers(FEWEST_ROWS_OF_VECTORS, 120),
    in_features=st.integers(1, 600),
    out_features=st.integers(1, 100),
    has_bias=st.booleans(),
    gap=st.integers(0, 3),
)
@settings(max_examples=30)
def test_products_of_floats_by_vectors(
    emulating: Emulating, rows: int, in_features: int, out_features: int, has_bias: bool, gap: int
):
    kernels, generator = emulating("dot"), torch.Generator().manual_seed(rows)
    x = torch.randn(rows, in_features + gap, generator=generator)[:, :in_features]
    weight, bias = random_rows(F8, out_features, in_features), torch.randn(out_features, generator=generator)
    packed, padded = pack(kernels, weight), kernels.quant.pad_bias([bias]) if has_bias else None
    got = product(kernels, x, packed, padded)
    assert is_close(got - (bias if has_bias else 0), x, weight)
    for i in (0, rows - 1):
        row = x[i : i + 1].expand(FEWEST_ROWS_OF_VECTORS, -1)
        assert torch.equal(product(kernels, row, packed, padded)[0], got[i]), "a row's result depends on other rows"


@pytest.mark.parametrize(
    ("rows", "in_features", "out_features"), [(40, 3100, 300), (1100, 100, 70), (300, 8192, 40)], ids=["chunks", "blocks", "both"]
)
def test_large_products_of_floats_by_vectors(rows: int, in_features: int, out_features: int, emulating: Emulating):
    kernels, x, weight = emulating("dot"), torch.randn(rows, in_features), random_rows(F8, out_features, in_features)
    assert is_close(product(kernels, x, pack(kernels, weight)), x, weight)


def test_few_rows_of_floats_and_other_weights_are_computed_without_rounding(emulating: Emulating):
    kernels = emulating("dot")
    for form in FORMATS:
        if form == Q8:  # without an instruction for bytes, many of its rows are multiplied in fp32
            continue
        packed = pack(kernels, random_rows(form, 70, 300))
        for rows in (1, FEWEST_ROWS_OF_VECTORS - 1, FEWEST_ROWS_OF_VECTORS):
            x = torch.randn(rows, 300)
            is_same = torch.equal(product(kernels, x, packed), kernels.quant.linear(x, packed, None))
            assert is_same != (form.is_float and rows == FEWEST_ROWS_OF_VECTORS)
    mixed, x = pack(kernels, random_rows(F8, 64, 300), random_rows(Q4, 64, 300)), torch.randn(40, 300)
    assert torch.equal(product(kernels, x, mixed), kernels.quant.linear(x, mixed, None)), "other weights read bytes"


@pytest.mark.parametrize("intermediate_size", [128, 96], ids=["gated", "not gated"])
def test_a_models_prompt_is_as_near_to_the_exact_one_as_without_tiles(
    intermediate_size: int, emulating: Emulating, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Whole decoder layers, whose gates are multiplied in the product if they fill pairs of panels."""
    sizes = {"hidden_size": 128, "intermediate_size": intermediate_size, "num_attention_heads": 8, "num_key_value_heads": 4}
    path = save_random_model(tmp_path, a_tiny_llama_config(**sizes), dtype=torch.bfloat16)
    monkeypatch.setattr(builder, "load_kernels", lambda: emulating("tiles"))
    prompt, logits = [(7 * i) % 90 for i in range(50)], []
    for options in ({}, {"quantization": "int8", "batch_invariant": True}, {"quantization": "int8"}):
        runner = builder.build_runner(RunnerConfig(path, "test", 256, 8, 64, 16, 1 << 20, **options))  # type: ignore[arg-type]
        assert runner._model.decoder is not None
        logits.append(runner.prompt_logits(prompt))
    exact, integers, tiles = logits
    assert not torch.equal(integers, tiles)
    assert (tiles - exact).norm() < 1.05 * (integers - exact).norm() < 0.06 * exact.norm()


def test_a_model_that_does_not_bear_inputs_of_8_bits_is_refused(
    emulating: Emulating, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Its prompts are not rounded to 8 bits with tiles, but its decoding steps are."""
    path = save_random_model(tmp_path, a_tiny_llama_config(hidden_size=64, intermediate_size=128), dtype=torch.bfloat16)
    model = LlamaForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
    with torch.no_grad():
        parts = [(model.model.norm, [model.lm_head])]
        for layer in model.model.layers:
            attention, mlp = layer.self_attn, layer.mlp
            parts.append((layer.input_layernorm, [attention.q_proj, attention.k_proj, attention.v_proj]))
            parts.append((layer.post_attention_layernorm, [mlp.gate_proj, mlp.up_proj]))
        for norm, linears in parts:  # huge inputs that mean nothing
            norm.weight[::8] = 300
            for linear in linears:
                linear.weight[:, ::8] = 0
    model.save_pretrained(path)
    monkeypatch.setattr(builder, "load_kernels", lambda: emulating("tiles"))
    with pytest.raises(UnsupportedModelError, match="quantised to int8"):
        builder.build_runner(RunnerConfig(path, "test", 256, 8, 64, 16, 1 << 20, quantization="int8"))
