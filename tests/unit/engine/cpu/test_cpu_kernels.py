"""The CPU kernels against plain torch, over shapes, chunks and features."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.builders.engine import a_tiny_llama_config, save_random_model
from support.drivers.attention import metadata, worst_difference
from triptych_common.host.cpu import isas_of_this_cpu
from triptych_engine.runner import builder
from triptych_engine.runner.attention.paged import LayerShape, TorchAttention
from triptych_engine.runner.builder import build_runner
from triptych_engine.runner.config import RunnerConfig
from triptych_engine.runner.cpu import attention as cpu_attention
from triptych_engine.runner.cpu import kernel_build
from triptych_engine.runner.cpu.attention import CpuAttention
from triptych_engine.runner.cpu.kernels import LINEAR_METHODS, CpuKernels, load_kernels

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}


@pytest.fixture(scope="module")
def kernels() -> CpuKernels:
    loaded = load_kernels()
    assert loaded is not None, "the kernels must build where the tests run"
    return loaded


def run_both(kernels: CpuKernels, **case: Any) -> float:
    """Feed the same ragged steps to the kernel and to plain torch; returns the largest difference."""
    return worst_difference([CpuAttention(kernels), TorchAttention(torch.device("cpu"))], **case)


RAGGED = [[20, 130, 0, 39], [16, 70, 5, 1], [1, 0, 1, 1], [1, 1, 1, 1]]
Emulating = Callable[[str], CpuKernels]


@pytest.mark.parametrize("method", LINEAR_METHODS)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    ("num_q_heads", "shape", "block_size", "options"),
    [
        (9, LayerShape(3, 64, 64), 16, {}),
        (14, LayerShape(2, 64, 64), 16, {}),
        (3, LayerShape(3, 33, 16), 16, {}),
        (8, LayerShape(1, 80, 80), 32, {}),
        (4, LayerShape(4, 24, 16), 16, {"window": 10}),
        (32, LayerShape(2, 128, 128), 16, {"softcap": 30.0}),
        (6, LayerShape(2, 64, 48), 16, {"window": 40, "sinks": torch.linspace(-1, 1, 6)}),
        (64, LayerShape(1, 32, 32), 48, {"scaling": 0.5}),
    ],
)
def test_paged_attention_matches_torch(
    emulating: Emulating, method: str, dtype: torch.dtype, num_q_heads: int, shape: LayerShape, block_size: int, options: dict
):
    case = {"shape": shape, "num_q_heads": num_q_heads, "steps": RAGGED, "block_size": block_size}
    assert run_both(emulating(method), dtype=dtype, **case, **options) < TOLERANCE[dtype]


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("method", LINEAR_METHODS)
def test_attention_over_no_tokens_is_nothing(emulating: Emulating, method: str):
    backend = CpuAttention(emulating(method))
    backend.allocate({0: LayerShape(2, 64, 64)}, 8, 16, torch.bfloat16)
    backend.begin(metadata([0], [0], np.zeros((1, 4), np.int32), 16))
    query, key = torch.zeros(0, 4, 64).bfloat16(), torch.zeros(0, 2, 64).bfloat16()
    assert backend.forward(0, query, key, key, scaling=1.0, window=0, softcap=0.0, sinks=None).shape == (0, 4, 64)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("method", LINEAR_METHODS)
def test_many_sequences_decode_over_contexts_of_any_length(emulating: Emulating, method: str):
    """Threads take all heads of a sequence then, and cut its keys into tiles of nearly equal size."""
    lengths = [*range(1, 40), 127, 128, 129, 143, 144, 145, 255, 256, 257, 300]
    steps = [lengths, [1] * len(lengths), [1] * len(lengths)]
    case = {"shape": LayerShape(3, 64, 64), "num_q_heads": 9, "steps": steps}
    assert run_both(emulating(method), dtype=torch.bfloat16, **case) < TOLERANCE[torch.bfloat16]


@pytest.mark.parametrize("method", LINEAR_METHODS)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_what_the_cache_held_before_spoils_nothing(
    emulating: Emulating, method: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
):
    """A block holds another request's numbers, or any bits, where this one has written nothing."""
    allocate = cpu_attention._allocate

    def poisoned(*args: Any) -> Any:
        cache = allocate(*args)
        for keys, values in cache.values():
            keys.fill_(torch.nan)
            values.fill_(torch.nan)
        return cache

    monkeypatch.setattr(cpu_attention, "_allocate", poisoned)
    for shape in (LayerShape(3, 64, 64), LayerShape(1, 33, 48)):
        steps = [[*range(1, 36)], [1] * 35, [2] * 35]
        worst = run_both(emulating(method), dtype=dtype, shape=shape, num_q_heads=3, steps=steps, block_size=32)
        assert worst < TOLERANCE[dtype]


@pytest.mark.parametrize("method", LINEAR_METHODS)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("options", [{}, {"window": 10}, {"window": 3}])
def test_tokens_of_a_span_see_each_other(emulating: Emulating, method: str, dtype: torch.dtype, options: dict):
    shape = LayerShape(2, 32, 32)
    worst = run_both(emulating(method), shape=shape, num_q_heads=4, dtype=dtype, steps=RAGGED, span=7, **options)
    assert worst < TOLERANCE[dtype]


@pytest.mark.parametrize("cache", TOLERANCE)
@pytest.mark.parametrize("value", TOLERANCE)
@pytest.mark.parametrize("query", TOLERANCE)
def test_queries_values_and_the_cache_may_differ_in_type(
    kernels: CpuKernels, query: torch.dtype, value: torch.dtype, cache: torch.dtype
):
    worst = run_both(
        kernels, shape=LayerShape(3, 64, 64), num_q_heads=9, dtype=value, steps=RAGGED, query_dtype=query, cache_dtype=cache
    )
    assert worst < TOLERANCE[value]  # keys and values are rounded alike by both


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_paged_attention_matches_torch_for_any_shape(emulating: Emulating, data: st.DataObject):
    kernels = emulating(data.draw(st.sampled_from(LINEAR_METHODS)))
    dtype = data.draw(st.sampled_from([*TOLERANCE]))
    num_kv_heads, group = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 9))
    shape = LayerShape(num_kv_heads, data.draw(st.integers(1, 96)), 16 * data.draw(st.integers(1, 6)))
    num_seqs = data.draw(st.integers(1, 4))
    first = data.draw(st.lists(st.integers(1, 150), min_size=num_seqs, max_size=num_seqs))
    second = [*data.draw(st.lists(st.integers(0, 40), min_size=num_seqs - 1, max_size=num_seqs - 1)), 1]
    worst = run_both(
        kernels,
        shape=shape,
        num_q_heads=num_kv_heads * group,
        dtype=dtype,
        steps=[first, second],
        block_size=16 * data.draw(st.integers(1, 3)),
        window=data.draw(st.sampled_from([0, 1, 7, 16, 100])),
        softcap=data.draw(st.sampled_from([0.0, 5.0])),
    )
    assert worst < TOLERANCE[dtype]


@pytest.mark.parametrize(
    ("dtype", "block_size", "v_head_dim"), [(torch.float16, 16, 16), (torch.float32, 8, 16), (torch.float32, 16, 24)]
)
def test_shapes_that_the_kernel_cannot_take_are_refused(kernels: CpuKernels, dtype: torch.dtype, block_size: int, v_head_dim: int):
    with pytest.raises(ValueError, match="the CPU kernel"):
        CpuAttention(kernels).allocate({0: LayerShape(1, 16, v_head_dim)}, 4, block_size, dtype)


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


def test_refined_logits_are_exact_at_the_top(kernels: CpuKernels):
    generator = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(5, 64, generator=generator).bfloat16(), torch.randn(1001, 64, generator=generator).bfloat16()
    exact = hidden.float() @ weight.float().T
    refined = kernels.refine_logits((hidden @ weight.T), hidden, weight, None)
    top = exact.topk(1).indices
    assert torch.equal(refined.argmax(-1), exact.argmax(-1))
    torch.testing.assert_close(refined.gather(-1, top), exact.gather(-1, top))
    assert (refined - exact).abs().max() < 0.25  # the rest keeps bf16 rounding


def test_refinement_breaks_ties_that_rounding_makes(kernels: CpuKernels):
    """25.25 and 25.3 are both 25.25 in bf16."""
    hidden = torch.tensor([[1.0, 0.05]]).bfloat16()
    weight = torch.tensor([[25.25, 0.0], [25.25, 1.0]]).bfloat16()
    rounded = hidden @ weight.T
    assert rounded[0, 0] == rounded[0, 1]
    assert kernels.refine_logits(rounded, hidden, weight, None).argmax().item() == 1


@pytest.mark.parametrize("size", [1, 16, 100, 1025, 2049, 49152])
def test_argmax(kernels: CpuKernels, size: int):
    x = torch.randn(7, size)
    value, index = kernels.argmax(x)
    torch.testing.assert_close(value, x.max(-1).values)
    assert torch.equal(index, x.argmax(-1))


def test_argmax_takes_the_first_of_equals_and_reports_nan(kernels: CpuKernels):
    x = torch.zeros(4, 5000)
    x[0, [17, 33, 4000]] = 3.0
    x[1, 20] = float("nan")
    x[2] = float("-inf")
    x[3] = -1.0
    x[3, 4999] = 0.0
    value, index = kernels.argmax(x)
    assert index[[0, 2, 3]].tolist() == [17, 0, 4999]
    assert value[1].isnan()


def test_without_a_compiler_there_is_a_warning_and_no_kernel(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path))
    monkeypatch.delenv("TRIPTYCH_KERNEL_DIR", raising=False)
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert load_kernels.__wrapped__() is None
    assert "no C++ compiler found" in caplog.text


def test_kernels_that_multiply_wrongly_are_not_used(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    multiply = CpuKernels.linear
    seen: list[CpuKernels] = []

    def wrong_in_the_first(self: CpuKernels, x: torch.Tensor, *rest: object) -> torch.Tensor:
        out = multiply(self, x, *rest)  # type: ignore[arg-type]
        seen.append(self)
        if self is seen[0] and len(x) > 32:
            out[-1, -1] += 0.1
        return out

    monkeypatch.setattr(CpuKernels, "linear", wrong_in_the_first)
    best, second = isas_of_this_cpu()[:2]
    loaded = load_kernels.__wrapped__()
    assert loaded is not None
    assert loaded is not seen[0]
    assert f"for {best} multiply wrongly" in caplog.text
    assert f"for {second} multiply" not in caplog.text


def test_a_prebuilt_library_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    assert load_kernels() is not None  # built by now
    library = kernel_build.find(isas_of_this_cpu()[0])
    assert library is not None
    prebuilt = tmp_path / "prebuilt"
    prebuilt.mkdir()
    shutil.copy(library, prebuilt)
    monkeypatch.setenv("TRIPTYCH_KERNEL_DIR", str(prebuilt))
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path / "empty"))
    monkeypatch.setenv("PATH", "")
    assert load_kernels.__wrapped__() is not None


def test_a_library_that_does_not_load_is_built_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    assert load_kernels() is not None  # built by now
    good = kernel_build.find(isas_of_this_cpu()[0])
    assert good is not None
    monkeypatch.delenv("TRIPTYCH_KERNEL_DIR", raising=False)
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path))
    bad = tmp_path / "kernels" / good.name
    bad.parent.mkdir()
    bad.write_text("for another system")
    monkeypatch.setattr(kernel_build, "build", lambda isa, folder: Path(shutil.copy(good, folder)))
    assert load_kernels.__wrapped__() is not None
    assert f"{bad} does not load and is built again" in caplog.text
    assert bad.read_bytes() == good.read_bytes()


@pytest.mark.parametrize("isa", isas_of_this_cpu())
def test_each_instruction_set_that_this_cpu_has_is_right(isa: str, kernels_for: Callable[[str], CpuKernels]):
    kernels = kernels_for(isa)
    for dtype, tolerance in TOLERANCE.items():
        assert run_both(kernels, shape=LayerShape(3, 64, 64), num_q_heads=9, dtype=dtype, steps=RAGGED) < tolerance
    weight = torch.randn(96, 900).bfloat16()
    for rows in (1, 5, 47, 100):
        x = torch.randn(rows, 900)
        expected = (x.double() @ weight.double().T).float()
        torch.testing.assert_close(kernels.linear_wide(x, kernels.pack_linear(weight), None, 96), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("isa", isas_of_this_cpu())
def test_a_forced_instruction_set_serves_a_model(isa: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Loading checks its logits against transformers'."""
    monkeypatch.setenv("TRIPTYCH_CPU_ISA", isa)
    monkeypatch.setattr(builder, "load_kernels", load_kernels.__wrapped__)
    path = save_random_model(tmp_path, a_tiny_llama_config(), dtype=torch.bfloat16)
    runner = build_runner(RunnerConfig(path, "test", 256, 8, 64, 16, 1 << 20))
    has_bfloat16 = "bf16" in isa or "amx" in isa
    assert runner._model.dtype == (torch.bfloat16 if has_bfloat16 else torch.float32)
    assert runner._backend.dtype == torch.bfloat16
    assert runner.prompt_logits([5, 6, 7]).isfinite().all()


@given(
    rows=st.integers(0, 220),
    in_features=st.integers(1, 70),
    out_features=st.integers(1, 140),
    bias=st.booleans(),
    gap=st.integers(0, 3),
)
@example(rows=100, in_features=1601, out_features=70, bias=True, gap=1)  # in parts
@settings(max_examples=60, deadline=None)
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
        for pack, dtype in ((kernels.pack_linear, torch.bfloat16), (kernels.pack_linear_int8, torch.float32)):
            dense = weight.to(dtype)
            across = dense.t().contiguous().t()
            assert not across.is_contiguous()
            assert torch.equal(pack(across), pack(dense))


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
    packed = kernels.pack_linear_int8(torch.randn(300, 256, generator=generator))
    inputs = [torch.randn(64, 256, generator=generator) for _ in range(2)]
    expected = [kernels.linear_int8(x, packed, None, 300) for x in inputs]

    def num_wrong(index: int) -> int:
        torch.set_num_threads(1)
        return sum(not torch.equal(kernels.linear_int8(inputs[index], packed, None, 300), expected[index]) for _ in range(1000))

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(num_wrong, range(2))) == [0, 0]
