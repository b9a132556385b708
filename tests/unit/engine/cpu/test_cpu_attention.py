"""The CPU's paged attention against plain torch, over shapes, chunks and features."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.drivers.attention import RAGGED, TOLERANCE, RoundedTorchAttention, metadata, run_both, worst_difference
from triptych_engine.runner.attention.paged import LayerShape
from triptych_engine.runner.cpu import attention as cpu_attention
from triptych_engine.runner.cpu.attention import CpuAttention
from triptych_engine.runner.cpu.kernels import LINEAR_METHODS, CpuKernels

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
        (6, LayerShape(2, 64, 48, 32, chunk=32), 16, {}),
        (6, LayerShape(2, 64, 48, 48, chunk=48), 48, {"softcap": 30.0}),
        (16, LayerShape(1, 72, 64, values_in_keys=True), 16, {}),
        (5, LayerShape(1, 34, 16, values_in_keys=True), 48, {"scaling": 0.5}),
        (40, LayerShape(1, 145, 144, values_in_keys=True), 32, {"window": 10, "softcap": 30.0}),
    ],
)
def test_paged_attention_matches_torch(
    emulating: Emulating, method: str, dtype: torch.dtype, num_q_heads: int, shape: LayerShape, block_size: int, options: dict
):
    case = {"shape": shape, "num_q_heads": num_q_heads, "steps": RAGGED, "block_size": block_size}
    assert run_both(emulating(method), dtype=dtype, **case, **options) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    ("num_q_heads", "shape", "block_size", "options"),
    [
        (9, LayerShape(3, 64, 64), 16, {}),
        (3, LayerShape(3, 33, 16), 16, {}),
        (8, LayerShape(1, 81, 80), 48, {}),
        (4, LayerShape(4, 24, 16), 16, {"window": 10}),
        (32, LayerShape(2, 128, 128), 16, {"softcap": 30.0}),
        (6, LayerShape(2, 62, 48), 16, {"window": 40, "sinks": torch.linspace(-1, 1, 6)}),
        (6, LayerShape(2, 64, 64), 32, {"span": 7}),
        (6, LayerShape(2, 64, 64), 16, {"query_dtype": torch.float32}),
        (16, LayerShape(1, 72, 64, values_in_keys=True), 16, {}),
        (5, LayerShape(1, 35, 16, values_in_keys=True), 48, {}),
    ],
)
def test_a_cache_in_int8_holds_rounded_keys_and_values(
    kernels: CpuKernels, dtype: torch.dtype, num_q_heads: int, shape: LayerShape, block_size: int, options: dict
):
    backends = [CpuAttention(kernels), RoundedTorchAttention(rounds_queries=kernels.rounds_queries)]
    case = {"shape": shape, "num_q_heads": num_q_heads, "steps": RAGGED, "block_size": block_size, "cache_dtype": torch.int8}
    # A query between two numbers of 8 bits may be rounded to either.
    tolerance = max(2 * TOLERANCE[dtype], 5e-3 if kernels.rounds_queries else 0.0)
    assert worst_difference(backends, dtype=dtype, **case, **options) < tolerance


def test_a_key_of_zeros_and_one_that_is_no_number_stay_what_they_are_in_int8(kernels: CpuKernels):
    backend = CpuAttention(kernels)
    backend.allocate({0: LayerShape(1, 32, 32)}, 2, 16, torch.int8)
    backend.begin(metadata([2], [0], np.zeros((1, 1), np.int32), 16))
    query, value = torch.ones(2, 1, 32), torch.randn(2, 1, 32, generator=torch.Generator().manual_seed(0))
    out = backend.forward(0, query, torch.zeros(2, 1, 32), value, scaling=1.0, window=0, softcap=0.0, sinks=None)
    torch.testing.assert_close(out[1, 0], value.mean(0)[0], atol=0.02, rtol=0)
    value[1, 0, 3] = float("nan")
    out = backend.forward(0, query, torch.zeros(2, 1, 32), value, scaling=1.0, window=0, softcap=0.0, sinks=None)
    assert not out[1].isfinite().all(), "the engine notices, and ends the request"


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
    """Threads take all heads of a sequence then, and cut its keys into tiles, of which the last one may be short."""
    lengths = [*range(1, 40), 127, 128, 129, 143, 144, 145, 255, 256, 257, 300]
    steps = [lengths, [1] * len(lengths), [1] * len(lengths)]
    case = {"shape": LayerShape(3, 64, 64), "num_q_heads": 9, "steps": steps}
    assert run_both(emulating(method), dtype=torch.bfloat16, **case) < TOLERANCE[torch.bfloat16]


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("method", LINEAR_METHODS)
@pytest.mark.parametrize("lengths", [[700], [1, 255, 256, 257, 511, 513, 800], [300, 5] * 10])
def test_threads_share_the_keys_of_few_sequences_if_values_are_in_the_keys(emulating: Emulating, method: str, lengths: list[int]):
    """Each part of the context is summed up by itself; of many sequences, a thread sums up all parts of one."""
    case = {"shape": LayerShape(1, 40, 32, values_in_keys=True), "num_q_heads": 6, "steps": [lengths, [1] * len(lengths)]}
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
        for part in (part for pair in cache.values() for part in pair if part is not None):
            part.fill_(torch.nan)
        return cache

    monkeypatch.setattr(cpu_attention, "_allocate", poisoned)
    for shape in (LayerShape(3, 64, 64), LayerShape(1, 33, 48), LayerShape(1, 33, 32, values_in_keys=True)):
        steps = [[*range(1, 36)], [1] * 35, [2] * 35]
        worst = run_both(emulating(method), dtype=dtype, shape=shape, num_q_heads=3, steps=steps, block_size=32)
        assert worst < TOLERANCE[dtype]


@pytest.mark.parametrize("method", LINEAR_METHODS)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    "options", [{}, {"window": 10}, {"window": 3}, {"ends_in_windows": True}, {"ends_in_windows": True, "window": 10}]
)
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


@settings(max_examples=80)
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("shape", [LayerShape(2, 24, 16), LayerShape(1, 35, 32), LayerShape(1, 72, 64, values_in_keys=True)])
def test_what_was_written_is_read(kernels: CpuKernels, shape: LayerShape, dtype: torch.dtype):
    backend, table = CpuAttention(kernels), np.array([[3, 0, 2]], np.int32)
    backend.allocate({0: shape}, 4, 16, dtype)
    backend.begin(metadata([40], [0], table, 16))
    given = torch.float32 if dtype == torch.int8 else dtype
    key = torch.randn(40, shape.num_kv_heads, shape.head_dim).to(given)
    value = (
        key[..., : shape.v_head_dim] if shape.values_in_keys else torch.randn(40, shape.num_kv_heads, shape.v_head_dim).to(given)
    )
    backend.write(0, key, value)
    places = torch.tensor([[39, 0, 17], [5, 5, 31]])
    slots = torch.from_numpy(backend.metadata.key_slots(0, 16))[places]
    for read, written in zip(backend.read(0, slots), (key, value), strict=True):
        largest = written.float().abs().amax(-1, keepdim=True)[places]
        tolerance = largest / 127 if dtype == torch.int8 else torch.zeros(())
        assert ((read.float() - written[places].float()).abs() <= tolerance).all()


def test_a_freed_cache_is_no_address(kernels: CpuKernels):
    backend = CpuAttention(kernels)
    backend.allocate({0: LayerShape(1, 16, 16)}, 4, 16, torch.float32)
    backend.begin(metadata([1], [0], np.zeros((1, 1), np.int32), 16))
    backend.layer_args((0,), 1)
    backend.free()
    with pytest.raises(KeyError):
        backend.layer_args((0,), 1)
