"""The size of the KV cache where no setting determines it, and a context that does not fit into it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders.engine import a_tiny_llama_config, save_random_model
from triptych.errors import StartupError
from triptych_common.host.memory import Memory, private_memory
from triptych_common.model.pooling import served_model
from triptych_engine.assembly import fitting_context
from triptych_engine.executor.in_process import InProcessExecutor
from triptych_engine.executor.protocol import ExecutorInfo
from triptych_engine.runner.builder import build_runner
from triptych_engine.runner.config import runner_config
from triptych_engine.runner.memory import kv_cache_bytes
from triptych_engine.settings import EngineSettings

GIB = 1 << 30
MEMORY = st.integers(0, 1 << 40)


@pytest.mark.parametrize(
    ("limit", "used", "reserved", "most", "utilization", "size"),
    [
        (10 * GIB, 2 * GIB, GIB, 100 * GIB, None, 3 * GIB),  # half of what is left
        (10 * GIB, 2 * GIB, GIB, 100 * GIB, 0.9, 6 * GIB),  # the share, weights included
        (10 * GIB, 2 * GIB, GIB, GIB // 2, None, GIB // 2),  # no more than is of use
        (10 * GIB, 9 * GIB, GIB, GIB, 0.5, 0),
    ],
)
def test_the_rule(limit: int, used: int, reserved: int, most: int, utilization: float | None, size: int) -> None:
    found = kv_cache_bytes(limit=limit, used=used, reserved=reserved, most=most, utilization=utilization)
    assert found == pytest.approx(size, abs=2)


@given(MEMORY, MEMORY, MEMORY, MEMORY, st.none() | st.floats(0.01, 1))
def test_it_never_takes_more_than_there_is(limit: int, used: int, reserved: int, most: int, utilization: float | None) -> None:
    size = kv_cache_bytes(limit=limit, used=used, reserved=reserved, most=most, utilization=utilization)
    assert 0 <= size <= most
    assert size == 0 or used + reserved + size <= limit


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_random_model(tmp_path, a_tiny_llama_config(max_position_embeddings=1 << 20))


def loaded_by(path: Path, **settings: object) -> tuple[EngineSettings, ExecutorInfo, int]:
    """An engine's executor with these settings, and how much memory its start took."""
    engine = EngineSettings(model=str(path), dtype="float32", **settings)  # type: ignore[arg-type]
    info, pooling = served_model(path, "tiny", engine.max_model_len, "auto")
    before = private_memory()
    loaded = InProcessExecutor(dataclasses.replace(runner_config(engine, info, path, pooling), prefault_kv_cache=False)).load()
    return engine, loaded, private_memory() - before


def test_a_large_cache_takes_no_memory_until_it_is_used(model: Path) -> None:
    limit = 8 * GIB + private_memory()  # what earlier tests left in this process counts
    _, loaded, grown = loaded_by(model, memory_limit=limit, memory_utilization=0.75)
    config = a_tiny_llama_config()
    token_bytes = 4 * 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    cache = loaded.num_blocks * loaded.block_size * token_bytes
    assert 3 * GIB < cache < 6 * GIB
    assert grown < GIB


def test_an_explicit_size_wins(model: Path) -> None:
    _, small, _ = loaded_by(model, kv_cache_memory=1 << 20, memory_limit=8 * GIB, memory_utilization=0.9)
    _, large, _ = loaded_by(model, kv_cache_memory=1 << 21)
    assert large.num_blocks == 2 * small.num_blocks


def test_the_limit_is_what_is_available(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triptych_engine.runner.config.usable_memory", lambda: Memory(GIB, 123))
    engine = EngineSettings(model=str(model))
    info, _ = served_model(model, "tiny", None, "auto")
    assert runner_config(engine, info, model).memory_limit == pytest.approx(123 + private_memory(), abs=64 << 20)


def test_too_little_memory_is_told(model: Path) -> None:
    info, _ = served_model(model, "tiny", None, "auto")
    config = runner_config(EngineSettings(model=str(model), memory_limit=1), info, model)
    with pytest.raises(StartupError, match=r"too little memory is left beside the weights: .*--kv-cache-memory"):
        build_runner(config)


def test_a_context_that_does_not_fit_is_lowered_or_refused(caplog: pytest.LogCaptureFixture) -> None:
    assert fitting_context(160, 160, is_explicit=True) == 160
    assert not caplog.records
    assert fitting_context(161, 160, is_explicit=False) == 160
    assert "context of 161 tokens does not fit: the KV cache holds 160 tokens" in caplog.text
    with pytest.raises(StartupError, match="max_model_len 161 does not fit: the KV cache holds 160 tokens; lower max_model_len"):
        fitting_context(161, 160, is_explicit=True)
