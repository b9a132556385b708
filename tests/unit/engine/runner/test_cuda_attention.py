"""The GPU backend on a CPU: all of it but the kernel, in whose place stands what its documentation says."""

from __future__ import annotations

import inspect
import logging
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.drivers.attention import metadata, worst_difference
from support.fakes.varlen import a_varlen_kernel, varlen_attn
from triptych.errors import StartupError
from triptych_engine.runner import backends
from triptych_engine.runner.attention.paged import LayerShape, TorchAttention
from triptych_engine.runner.backends import choose_backend, try_kernel
from triptych_engine.runner.cuda.attention import CudaAttention, StepTensors
from triptych_engine.runner.cuda.varlen import VarlenFunction, VarlenKernel, find_varlen_kernel

CPU = torch.device("cpu")
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
RAGGED = [[20, 130, 0, 39], [16, 70, 5, 1], [1, 0, 1, 1], [1, 1, 1, 1]]


def run_both(**case: Any) -> float:
    return worst_difference([CudaAttention(CPU, a_varlen_kernel()), TorchAttention(CPU)], **case)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    ("num_q_heads", "shape", "options"),
    [
        (9, LayerShape(3, 64, 64), {}),
        (4, LayerShape(4, 24, 24), {"window": 10}),
        (8, LayerShape(1, 80, 80), {"window": 1, "scaling": 0.5}),
        (8, LayerShape(2, 32, 32), {"softcap": 30.0}),
        (6, LayerShape(2, 64, 64), {"window": 40, "sinks": torch.linspace(-1, 1, 6)}),
        (6, LayerShape(2, 64, 64), {"span": 7}),
        (6, LayerShape(2, 64, 64), {"span": 7, "window": 10}),
    ],
)
def test_it_matches_plain_torch(dtype: torch.dtype, num_q_heads: int, shape: LayerShape, options: dict):
    assert run_both(shape=shape, num_q_heads=num_q_heads, dtype=dtype, steps=RAGGED, **options) < TOLERANCE[dtype]


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_it_matches_plain_torch_on_any_ragged_batch(data: st.DataObject):
    num_kv_heads, group, dim = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 9)), 8 * data.draw(st.integers(1, 6))
    num_seqs = data.draw(st.integers(1, 4))
    first = data.draw(st.lists(st.integers(1, 90), min_size=num_seqs, max_size=num_seqs))
    second = [*data.draw(st.lists(st.integers(0, 20), min_size=num_seqs - 1, max_size=num_seqs - 1)), 1]
    worst = run_both(
        shape=LayerShape(num_kv_heads, dim, dim),
        num_q_heads=num_kv_heads * group,
        dtype=torch.float32,
        steps=[first, second, [1] * num_seqs],
        block_size=data.draw(st.sampled_from([1, 5, 16, 64])),
        window=data.draw(st.sampled_from([0, 1, 13])),
    )
    assert worst < TOLERANCE[torch.float32]


def test_layers_that_the_kernel_does_not_take_are_computed_beside_it(caplog: pytest.LogCaptureFixture):
    """Layer 1 has values of another size; layer 2 turns out to have a softcap."""
    layers = {0: LayerShape(1, 16, 16), 1: LayerShape(1, 16, 8), 2: LayerShape(1, 16, 16), 3: LayerShape(1, 16, 8)}
    backend, reference = CudaAttention(CPU, a_varlen_kernel()), TorchAttention(CPU)
    with caplog.at_level(logging.WARNING):
        for one in (backend, reference):
            one.allocate(layers, 4, 16, torch.float32)
        assert not backend.fits_graphs
        table = np.array([[2, 0, 1]], np.int32)
        for lengths, computed in (([20], [0]), ([1], [20])):
            for layer, shape in layers.items():
                generator = torch.Generator().manual_seed(layer + computed[0])
                q, k = (torch.randn(lengths[0], n, 16, generator=generator) for n in (2, 1))
                v = torch.randn(lengths[0], 1, shape.v_head_dim, generator=generator)
                outputs = []
                for one in (backend, reference):
                    one.begin(metadata(lengths, computed, table, 16))
                    options = {"scaling": 0.25, "window": 0, "softcap": 20.0 if layer == 2 else 0.0, "sinks": None}
                    outputs.append(one.forward(layer, q, k, v, **options))  # type: ignore[arg-type]
                torch.testing.assert_close(*outputs)
    reasons = [record.getMessage() for record in caplog.records]
    assert len(reasons) == 2, "one line for each reason, not for each layer or step"
    assert "8 dimensions" in reasons[0]
    assert "softcap" in reasons[1]


def test_a_step_on_the_device_needs_no_host_arrays():
    backend = CudaAttention(CPU, a_varlen_kernel())
    backend.allocate({0: LayerShape(1, 8, 8)}, 3, 4, torch.float32)
    assert backend.fits_graphs
    seq_lens = torch.tensor([1, 1], dtype=torch.int32)
    start = torch.tensor([0, 1, 2], dtype=torch.int32)
    table = torch.tensor([[1], [backend.scratch_slot // 4]], dtype=torch.int32)
    backend.begin_on(StepTensors(torch.tensor([4, backend.scratch_slot]), table, start, start, seq_lens, 1, 8))
    q, k, v = (torch.randn(2, 1, 8) for _ in range(3))
    options = {"scaling": 1.0, "window": 0, "softcap": 0.0, "sinks": None}
    torch.testing.assert_close(backend.forward(0, q, k, v, **options), v)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="softcap"):
        backend.forward(0, q, k, v, **(options | {"softcap": 1.0}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("block_size", "dtype", "shape", "reason"),
    [
        (16, torch.bfloat16, LayerShape(1, 64, 64), "multiple of 256, not 16"),
        (256, torch.float32, LayerShape(1, 64, 64), "not in float32"),
        (256, torch.bfloat16, LayerShape(1, 64, 32), "values of 32 dimensions"),
        (256, torch.bfloat16, LayerShape(1, 288, 288), "heads of 288"),
        (256, torch.bfloat16, LayerShape(1, 60, 60), "heads of 60"),
    ],
)
def test_it_says_what_the_kernel_does_not_take(block_size: int, dtype: torch.dtype, shape: LayerShape, reason: str):
    with pytest.raises(ValueError, match=reason):
        CudaAttention(CPU, VarlenKernel(varlen_attn)).allocate({0: shape}, 4, block_size, dtype)


def test_torch_has_the_function_that_is_called():
    """Names and order of the parameters are those of torch's own."""
    real = list(inspect.signature(find_varlen_kernel(CPU).attend).parameters)
    mine = list(inspect.signature(VarlenFunction.__call__).parameters)[1:]
    assert mine[:7] == real[:7]
    assert set(mine) <= set(real)


def test_a_build_without_block_tables_is_noticed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", lambda query, key, value, scale: query)
    with pytest.raises(ValueError, match="has no block_table, enable_gqa"):
        find_varlen_kernel(CPU)


def test_a_kernel_is_tried_before_it_is_trusted():
    shape = LayerShape(2, 32, 32)
    try_kernel(a_varlen_kernel(), CPU, shape, 16, torch.bfloat16)

    def only_the_first_page(*args: Any, seqused_k: torch.Tensor, **options: Any) -> torch.Tensor:
        short = seqused_k.clamp(max=16)
        keys = torch.nn.functional.pad(short.cumsum(0, dtype=torch.int32), (1, 0))
        return varlen_attn(*args[:4], keys, *args[5:], seqused_k=short, **options)

    def fails(*args: Any, **options: Any) -> torch.Tensor:
        raise RuntimeError("no kernel image")

    dtypes = frozenset({torch.bfloat16})
    with pytest.raises(ValueError, match="is wrong"):
        try_kernel(VarlenKernel(only_the_first_page, 1, dtypes=dtypes), CPU, shape, 16, torch.bfloat16)
    with pytest.raises(ValueError, match="no kernel image"):
        try_kernel(VarlenKernel(fails, 1, dtypes=dtypes), CPU, shape, 16, torch.bfloat16)


class TestChoice:
    """`choose_backend`, for a device that it is told is a GPU but whose tensors are on the CPU."""

    LAYERS: dict[int, LayerShape] = {0: LayerShape(1, 64, 64)}  # noqa: RUF012

    @pytest.fixture(autouse=True)
    def _stand_in(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(backends, "find_varlen_kernel", lambda device: a_varlen_kernel(page_multiple=256))
        monkeypatch.setattr(backends, "CudaAttention", lambda device, kernel: CudaAttention(CPU, kernel))
        monkeypatch.setattr(backends, "try_kernel", lambda *args: None)

    def choose(self, name: str, block_size: int) -> str:
        return choose_backend(name, torch.device("cuda"), self.LAYERS, block_size, torch.bfloat16, None).name

    def test_a_gpu_gets_its_kernel(self):
        assert self.choose("auto", 256) == self.choose("cuda", 256) == "cuda"

    def test_what_it_does_not_take_falls_back_with_the_reason(self, caplog: pytest.LogCaptureFixture):
        with caplog.at_level(logging.WARNING):
            assert self.choose("auto", 16) == "torch"
        assert "multiple of 256" in caplog.text

    def test_asked_for_by_name_it_must_work(self):
        with pytest.raises(StartupError, match="multiple of 256"):
            self.choose("cuda", 16)
        with pytest.raises(StartupError, match="the device is cuda"):
            self.choose("cpu", 256)

    def test_plain_torch_can_be_asked_for(self):
        assert self.choose("torch", 256) == "torch"
