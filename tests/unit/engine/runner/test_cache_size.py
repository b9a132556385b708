"""How a cache is divided among blocks of all tokens, blocks of a window, and recurrent states."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from support.builders.engine import save_random_model
from support.builders.hybrid_families import HYBRIDS
from support.builders.text_families import FAMILIES
from triptych_engine.kv_offload.host_memory import HostMemory
from triptych_engine.runner.builder import build_runner
from triptych_engine.runner.config import RunnerConfig
from triptych_engine.runner.memory import CacheBytes, CacheSize, known_size
from triptych_engine.runner.parallel.group import AgreedVerdicts
from triptych_engine.runner.verdicts import Verdicts

GIB = 1 << 30
#: As of Gemma 3 1B in bfloat16: 22 of 26 layers have a window of 512 tokens, each token takes 1 KiB in a layer.
GEMMA = CacheBytes(block=4 * 16 << 10, window_block=22 * 16 << 10, window=512)


def a_config(path: Path = Path(), max_num_seqs: int = 64, max_model_len: int = 32768, **options: object) -> RunnerConfig:
    return RunnerConfig(path, "test", max_model_len, max_num_seqs, 2048, 16, **({"kv_cache_bytes": GIB} | options))  # type: ignore[arg-type]


def test_layers_with_a_window_leave_room_for_longer_contexts():
    together = CacheBytes(GEMMA.block + GEMMA.window_block)
    for num_seqs, tokens in ((64, 95_000), (4, 199_000)):
        assert together.divide(a_config(max_num_seqs=num_seqs), GIB).num_blocks * 16 == 40_320
        assert GEMMA.divide(a_config(max_num_seqs=num_seqs), GIB).num_blocks * 16 > tokens


@given(
    parts=st.builds(
        CacheBytes, block=st.integers(1, 1 << 20), state=st.integers(0, 1 << 26), window_block=st.integers(0, 1 << 20),
        window=st.integers(1, 4096),
    ),
    size=st.integers(0, 1 << 36),
    max_num_seqs=st.integers(1, 256),
)  # fmt: skip
def test_a_cache_never_takes_more_than_its_memory(parts: CacheBytes, size: int, max_num_seqs: int):
    config = a_config(max_num_seqs=max_num_seqs)
    cache = parts.divide(config, size)
    assert min(cache.num_blocks, cache.num_states, cache.num_window_blocks) >= 0
    if not cache.num_window_blocks:
        parts = parts.joined()
    taken = cache.num_blocks * parts.block + cache.num_states * parts.state + cache.num_window_blocks * parts.window_block
    assert taken <= size
    assert size - taken < parts.block
    assert (cache.num_states == 0) or parts.state
    if size >= parts.most(config) and parts.state:
        assert cache.num_states == 4 * max_num_seqs


def test_a_models_layers_say_how_its_cache_is_divided(tmp_path: Path):
    """Gemma 2 has windows in every other layer, LFM2 has convolutions. A context within the window, copies of blocks and torch
    leave all layers their common blocks."""
    gemma = save_random_model(tmp_path / "gemma2", FAMILIES["gemma2"])
    small = {"max_num_seqs": 4, "max_model_len": 64, "kv_cache_bytes": 1 << 24}
    size = build_runner(a_config(gemma, **small)).size
    assert size.num_window_blocks > 0
    assert size.num_states == 0
    memory = HostMemory.create(1 << 20)
    for options in ({"max_model_len": 8}, {"host_memory": memory}, {"attention": "torch"}, {"kv_cache_bytes": 1 << 17}):
        assert build_runner(a_config(gemma, **(small | options))).size.num_window_blocks == 0
    memory.close()
    lfm2 = save_random_model(tmp_path / "lfm2", HYBRIDS["lfm2"])
    config = dataclasses.replace(a_config(lfm2, **small), dtype=torch.float32)
    runner = build_runner(config)
    assert runner.size.num_states == 16
    recurrent = runner._model.recurrent
    assert recurrent is not None
    assert recurrent.state_bytes == 2 * 2 * 64 * 4  # two layers, two tokens, 64 channels, float32
    assert recurrent.num_slots == 16
    runner.free_cache()
    assert recurrent.num_slots == 0


class _TwoRanks:
    """A group whose other rank has other numbers."""

    def __init__(self, other: CacheSize) -> None:
        self._other = {("cache", name): number for name, number in dataclasses.asdict(other).items()}

    def agree(self, answer: int, question: Any) -> int:
        return min(answer, self._other[question])


def test_ranks_take_the_smallest_of_each_number():
    """Their memory differs, and what each has one block too few of would be written behind its end."""
    one, other = CacheSize(1000, 5, 70), CacheSize(998, 6, 71)
    verdicts = AgreedVerdicts(Verdicts(), _TwoRanks(other))  # type: ignore[arg-type]
    assert known_size(one, verdicts) == CacheSize(998, 5, 70)
