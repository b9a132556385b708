"""The GPU's attention, its kernels under Triton's interpreter, against plain torch."""

from __future__ import annotations

import logging
import os
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.drivers.attention import RAGGED, metadata, worst_difference
from triptych.errors import StartupError
from triptych_engine.runner.attention.paged import LayerShape
from triptych_engine.runner.attention.plain import TorchAttention
from triptych_engine.runner.backends import choose_backend, try_backend

pytest.importorskip("triton", minversion="3.7")  # the interpreter of 3.6 fails with NumPy 2.4
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("Triton's interpreter is off on a machine with a GPU", allow_module_level=True)

from triptych_engine.runner.cuda import attention, paged_kernels
from triptych_engine.runner.cuda.attention import CudaAttention, is_decoding, prompt_tiles
from triptych_engine.runner.cuda.step import DecodeTokens, StepTensors

CPU = torch.device("cpu")
#: The interpreter computes no products of bfloat16.
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3}


def run_both(**case: Any) -> float:
    return worst_difference([CudaAttention(CPU), TorchAttention(CPU)], **case)


@pytest.mark.parametrize(
    ("num_q_heads", "shape", "options"),
    [
        (9, LayerShape(3, 64, 64), {"dtype": torch.float16}),
        (6, LayerShape(2, 48, 32), {}),
        (4, LayerShape(4, 24, 24), {"window": 10}),
        (8, LayerShape(1, 80, 80), {"window": 1, "scaling": 0.5}),
        (8, LayerShape(2, 32, 32), {"softcap": 30.0}),
        (6, LayerShape(2, 64, 64), {"window": 40, "sinks": torch.linspace(-1, 1, 6)}),
        (4, LayerShape(2, 16, 16), {"sinks": torch.linspace(-1, 1, 4)}),
        (6, LayerShape(2, 64, 64), {"span": 7}),
        (6, LayerShape(2, 64, 64), {"span": 7, "window": 10}),
        (6, LayerShape(2, 64, 64), {"span": 7, "ends_in_windows": True}),
        (6, LayerShape(2, 64, 64), {"span": 7, "ends_in_windows": True, "window": 10}),
        (6, LayerShape(2, 64, 64, 32, chunk=32), {}),
        (24, LayerShape(1, 32, 32), {"query_dtype": torch.float32, "dtype": torch.float16}),
        (2, LayerShape(1, 512, 512), {"steps": [[3, 40, 0, 17], [1, 1, 2, 1]]}),
    ],
)
def test_it_matches_plain_torch(num_q_heads: int, shape: LayerShape, options: dict):
    case = {"dtype": torch.float32, "steps": RAGGED} | options
    assert run_both(shape=shape, num_q_heads=num_q_heads, **case) < TOLERANCE[case["dtype"]]


@settings(max_examples=6)
@given(data=st.data())
def test_it_matches_plain_torch_on_any_ragged_batch(data: st.DataObject):
    num_kv_heads, group, dim = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 9)), data.draw(st.integers(1, 48))
    num_seqs = data.draw(st.integers(1, 3))
    first = data.draw(st.lists(st.integers(1, 90), min_size=num_seqs, max_size=num_seqs))
    second = [*data.draw(st.lists(st.integers(0, 20), min_size=num_seqs - 1, max_size=num_seqs - 1)), 1]
    worst = run_both(
        shape=LayerShape(num_kv_heads, dim, data.draw(st.sampled_from([dim, 8]))),
        num_q_heads=num_kv_heads * group,
        dtype=torch.float32,
        steps=[first, second, [1] * num_seqs],
        block_size=data.draw(st.sampled_from([1, 5, 16, 64])),
        window=data.draw(st.sampled_from([0, 1, 13])),
    )
    assert worst < TOLERANCE[torch.float32]


def test_long_contexts_are_split_among_the_processors(monkeypatch: pytest.MonkeyPatch):
    numbers: list[int] = []
    num_splits = paged_kernels._num_splits
    monkeypatch.setattr(paged_kernels, "_num_splits", lambda *args: (numbers.append(num_splits(*args)), numbers[-1])[1])
    for options in ({}, {"window": 150, "sinks": torch.linspace(-1, 1, 2)}):
        steps = [[260, 65], [1, 1]]
        worst = run_both(shape=LayerShape(1, 16, 16), num_q_heads=2, dtype=torch.float32, steps=steps, **options)
        assert worst < TOLERANCE[torch.float32]
    assert set(numbers) == {4}
    assert [num_splits(n, 4096, 64, 132) for n in (1, 8, 64, 512, 2048)] == [32, 32, 5, 1, 1]
    assert num_splits(1, 40, 64, 132) == 1


def test_decoding_sequences_are_apart_from_prompts():
    table = np.arange(12, dtype=np.int32).reshape(4, 3)
    step = metadata([1, 5, 1, 9], [20, 0, 0, 30], table, 16)
    assert is_decoding(step).tolist() == [True, False, True, False]
    sequences, tokens = prompt_tiles(step, ~is_decoding(step), 4)
    assert list(zip(sequences.tolist(), tokens.tolist(), strict=True)) == [(3, 15), (3, 11), (3, 7), (1, 5), (1, 1)]
    spans = metadata([1, 1], [4, 0], table[:2], 16, span=3)
    spans.key_end = np.array([5, 3], np.int32)  # the second token sees keys behind its own
    assert is_decoding(spans).tolist() == [True, False]


def test_a_step_on_the_device_needs_no_host_arrays():
    backend = CudaAttention(CPU)
    backend.allocate({0: LayerShape(1, 8, 8)}, 3, 4, torch.float32)
    rows, lengths = torch.tensor([0, 1], dtype=torch.int32), torch.tensor([1, 1], dtype=torch.int32)
    # Two rows of one block each, though the buffer has room for more.
    table = torch.tensor([1, backend.scratch_slot // 4, 77, 77], dtype=torch.int32)
    width = torch.tensor([1], dtype=torch.int32)
    backend.begin_on(StepTensors(torch.tensor([4, backend.scratch_slot]), lengths, table, width, DecodeTokens(rows, rows, 8)))
    q, k, v = (torch.randn(2, 1, 8) for _ in range(3))
    options = {"scaling": 1.0, "window": 0, "softcap": 0.0, "sinks": None}
    torch.testing.assert_close(backend.forward(0, q, k, v, **options), v)  # type: ignore[arg-type]


def test_heads_that_are_too_wide_are_refused():
    with pytest.raises(ValueError, match="heads of 576 dimensions"):
        CudaAttention(CPU).allocate({0: LayerShape(1, 576, 512)}, 4, 16, torch.bfloat16)


def test_the_keys_of_indexers_are_left_to_plain_torch():
    with pytest.raises(ValueError, match="the keys of an indexer"):
        CudaAttention(CPU).allocate({0: LayerShape(1, 16, 16, values_in_keys=True)}, 4, 16, torch.bfloat16)


def test_a_backend_is_tried_before_it_is_trusted(monkeypatch: pytest.MonkeyPatch):
    shape = LayerShape(2, 32, 16)
    try_backend(CudaAttention(CPU), CPU, shape, 16, torch.float16)
    attend = CudaAttention.attend
    monkeypatch.setattr(CudaAttention, "attend", lambda *args, **options: attend(*args, **options).roll(1, 0))
    with pytest.raises(ValueError, match="is wrong"):
        try_backend(CudaAttention(CPU), CPU, shape, 16, torch.float16)

    def fails(*args: Any, **options: Any) -> torch.Tensor:
        raise RuntimeError("no kernel image")

    monkeypatch.setattr(CudaAttention, "attend", fails)
    with pytest.raises(ValueError, match="no kernel image"):
        try_backend(CudaAttention(CPU), CPU, shape, 16, torch.float16)


class TestChoice:
    """`choose_backend`, for a device that it is told is a GPU but whose tensors are on the CPU."""

    @pytest.fixture(autouse=True)
    def _stand_in(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(attention, "CudaAttention", lambda device: CudaAttention(CPU))
        monkeypatch.setattr("triptych_engine.runner.backends.try_backend", lambda *args: None)

    def choose(self, name: str, dim: int = 64) -> str:
        layers = {0: LayerShape(1, dim, 64)}
        return choose_backend(name, torch.device("cuda"), layers, 16, torch.bfloat16, None).name

    def test_a_gpu_gets_its_kernels(self):
        assert self.choose("auto") == self.choose("cuda") == "cuda"

    def test_what_they_do_not_take_falls_back_with_the_reason(self, caplog: pytest.LogCaptureFixture):
        with caplog.at_level(logging.WARNING):
            assert self.choose("auto", 576) == "torch"
        assert "heads of 576" in caplog.text

    def test_asked_for_by_name_they_must_work(self):
        with pytest.raises(StartupError, match="heads of 576"):
            self.choose("cuda", 576)
        with pytest.raises(StartupError, match="the device is cuda"):
            self.choose("cpu")

    def test_plain_torch_can_be_asked_for(self):
        assert self.choose("torch") == "torch"
