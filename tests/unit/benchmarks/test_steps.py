"""The clock around an engine's stages, and what benchmarks/steps.py measures with it on a tiny model."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import stages
import torch
from charts import BarChart, LineChart
from engine import load_engine
from outside import Outside
from report import render
from stages import ATTENTION, HEAD, LINEAR, OTHER, STAGES, StageClock
from steps import Bench
from steps_report import charts
from support.builders.engine import a_tiny_llama_config, save_random_model
from triptych_engine.runner.cpu.kernels import load_kernels
from triptych_engine.settings import EngineSettings


def test_a_stage_within_another_stops_the_others_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0, 10, 13, 13, 17, 20])
    monkeypatch.setattr(stages.time, "perf_counter_ns", lambda: next(now))
    clock = StageClock()
    clock.is_on = True
    clock.enter("outer")
    for _ in range(2):
        clock.enter("inner")
        clock.leave()
    clock.leave()
    assert dict(clock.ns) == {"outer": 10 + 0 + 3, "inner": 3 + 4}


def test_a_clock_that_is_off_notes_nothing() -> None:
    clock = StageClock()
    clock.enter("outer")
    clock.leave()
    assert not clock.ns


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Weights are bfloat16 numbers, so that in float32 a layer is one call of a kernel."""
    path = save_random_model(tmp_path_factory.mktemp("model"), a_tiny_llama_config(hidden_size=64), dtype=torch.bfloat16)
    settings = EngineSettings(model=str(path), dtype=request.param, max_num_seqs=8, kv_cache_memory=1 << 24, num_threads=1)
    with Outside() as outside:
        yield Bench(load_engine(settings), outside)


@pytest.mark.model
def test_the_stages_of_a_step_make_up_the_step(bench: Bench) -> None:
    started_s = time.perf_counter()
    runs = [bench.decode(4, 48, num_steps=3), bench.prefill(64, num_steps=3)]
    elapsed_ms = (time.perf_counter() - started_s) * 1e3
    for run in runs:
        assert list(run["stages_ms"]) == list(STAGES)
        assert all(ms >= 0 for ms in run["stages_ms"].values())
        assert all(run["stages_ms"][stage] > 0 for stage in (ATTENTION, LINEAR, HEAD, OTHER))
        assert 0 < run["step_ms_with_clock"] < elapsed_ms
        assert run["message_ms"] > 0
    kernels = load_kernels()
    assert kernels is None or kernels.stage_ns is None, "the clock inside the kernel stays on"


@pytest.mark.model
def test_decoding_of_longer_contexts_begins_with_what_shorter_ones_computed(bench: Bench) -> None:
    bench.decode(2, 32, num_steps=1)
    hits = bench._scheduler.kv_cache.prefix_cache_hits
    bench.decode(2, 64, num_steps=1)
    # Both sequences find the blocks of the shorter context, then each finds its own whole prompt but for its end.
    assert bench._scheduler.kv_cache.prefix_cache_hits - hits >= 2 * 32
    prompt = bench.whole_prompt(100)
    assert (prompt["prompt_tokens"], prompt["num_steps"]) == (100, 1)
    assert bench._scheduler.num_running == 0


def results_of(*runs: dict) -> dict:
    return {
        "kind": "steps",
        "command": "python benchmarks/steps.py",
        "date": "2026-01-31",
        "commit": "abc",
        "machine": {"cpu": "a processor", "cores": 2, "memory_gb": 16.0, "system": "Linux"},
        "versions": {"python": "3.11"},
        "busy_percent": {"all": 1.0, "own": 0.1},
        "load": {
            "model": "m",
            "sequences": [1, 8],
            "contexts": [128, 512],
            "context_sequences": [8],
            "prefill": 512,
            "steps": 20,
            "repeats": 2,
            "kv_cache_memory": "2G",
        },
        "runs": list(runs),
        "prompts": [{"repeat": repeat, "prompt_tokens": 128, "num_steps": 1, "seconds": 0.2 + repeat / 5} for repeat in (0, 1)],
    }


def run_of(phase: str, step_ms: float, **size: int) -> dict:
    stages_ms = {**dict.fromkeys(STAGES, 0.5), ATTENTION: step_ms / 4}
    return {
        "phase": phase,
        **size,
        "step_ms": step_ms,
        "step_ms_with_clock": step_ms + 1,
        "stages_ms": stages_ms,
        "message_ms": 0.1,
    }


RESULTS = results_of(
    run_of("decode", 20, num_seqs=1, context=128),
    run_of("decode", 30, num_seqs=8, context=128),
    run_of("decode", 45, num_seqs=8, context=512),
    run_of("prefill", 700, num_tokens=512),
)


def test_the_tables_hold_stages_contexts_and_prompts() -> None:
    tables = render(RESULTS, "results.json")
    assert "| attention | 5.00 | 7.50 | 175.0 |" in tables
    assert "| **step** | **20.0** | **30.0** | **700.0** |" in tables
    assert "| 512 | 8 | 45.0 | 11.2 | 5.62 | 1.50 |" in tables
    assert "| 128 | 0.30 | 427 |" in tables
    assert "](figures/steps-stages.svg)" in tables


def test_the_charts_show_each_run_once() -> None:
    made = charts(RESULTS)
    bars, contexts = made["stages"], made["contexts"]
    assert isinstance(bars, BarChart)
    assert isinstance(contexts, LineChart)
    assert [panel.title.partition(":")[0] for panel in bars.panels] == ["1 sequence", "8 sequences", "512 prompt tokens"]
    assert contexts.lines[0].points == [(128, 30), (512, 45)]
    assert contexts.lines[1].points == [(128, 22.5), (512, 33.75)]
