"""The clock around an engine's stages, and what benchmarks.steps measures with it on a tiny model."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.builders.engine import a_tiny_llama_config, save_random_model
from triptych_engine.runner.cpu.kernels import load_kernels
from triptych_engine.settings import EngineSettings

from benchmarks.compare import compare
from benchmarks.engine import stages
from benchmarks.engine.local import LocalEngine, load_engine
from benchmarks.engine.outside import Outside
from benchmarks.engine.stages import ATTENTION, HEAD, LINEAR, OTHER, SAMPLING, SCHEDULE, STAGES, StageClock
from benchmarks.report.document import region, render
from benchmarks.report.steps import charts
from benchmarks.steps import Bench


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


def settings_of(path: Path, dtype: str) -> EngineSettings:
    return EngineSettings(model=str(path), dtype=dtype, max_num_seqs=8, kv_cache_memory=1 << 24, num_threads=1)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights are bfloat16 numbers, so that in float32 a layer is one call of a kernel."""
    return save_random_model(tmp_path_factory.mktemp("model"), a_tiny_llama_config(hidden_size=64), dtype=torch.bfloat16)


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def bench(request: pytest.FixtureRequest, model: Path) -> Iterator[Bench]:
    with Outside() as outside:
        yield Bench(load_engine(settings_of(model, request.param)), outside)


@pytest.mark.model
def test_the_stages_of_a_step_make_up_the_step(bench: Bench) -> None:
    for measure in (lambda: bench.decode(4, 48, num_steps=1), lambda: bench.prefill(64, num_steps=1)):
        runs = [measure() for _ in range(5)]
        for run in runs:
            assert list(run["stages_ms"]) == list(STAGES)
            assert all(ms >= 0 for ms in run["stages_ms"].values())
            assert all(run["stages_ms"][stage] > 0 for stage in (ATTENTION, LINEAR, HEAD, OTHER, SAMPLING))
        # What is told twice, or not at all, is so in each of them; in one at least nobody else took the core between two clocks.
        missing = min(abs(1 - sum(run["stages_ms"].values()) / run["step_ms_with_clock"]) for run in runs)
        assert missing < 0.03, runs
    kernels = load_kernels()
    assert kernels is None or kernels.stage_ns is None, "the clock inside the kernel stays on"


@pytest.mark.model
def test_time_is_told_to_the_stage_that_took_it(model: Path) -> None:
    loaded = load_engine(settings_of(model, "bfloat16"))
    schedule = loaded.scheduler.schedule

    def slowly() -> object:
        time.sleep(0.05)
        return schedule()

    loaded.scheduler.schedule = slowly  # type: ignore[assignment]
    with Outside() as outside:
        run = Bench(loaded, outside).decode(1, 16, num_steps=3)
    assert run["stages_ms"][SCHEDULE] >= 50
    assert run["step_ms"] >= 50
    assert sum(run["stages_ms"].values()) - run["stages_ms"][SCHEDULE] < 50


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


@pytest.mark.model
def test_a_prompt_is_computed_in_chunks_beside_streams(bench: Bench) -> None:
    steps = bench.mixed(2, 32, 200)
    assert sum(step["num_tokens"] for step in steps) == 200
    assert [step["num_before"] for step in steps] == [sum(one["num_tokens"] for one in steps[:n]) for n in range(len(steps))]
    assert {step["num_seqs"] for step in steps} == {2}
    assert bench._scheduler.num_running == 0


def results_of(*runs: dict) -> dict:
    return {
        "kind": "steps",
        "command": "python -m benchmarks.steps",
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
    assert "](../figures/steps-contexts.svg)" in region(RESULTS, "results.json")


def test_the_charts_show_each_run_once() -> None:
    lines = charts(RESULTS)["contexts"].lines
    assert lines[0].points == [(128, 30), (512, 45)]
    assert lines[1].points == [(128, 22.5), (512, 33.75)]


def test_files_before_and_after_are_compared_pair_by_pair() -> None:
    faster = results_of(run_of("decode", 10, num_seqs=1, context=128), run_of("prefill", 700, num_tokens=512))
    lines = compare([RESULTS, RESULTS], [faster, RESULTS])
    assert [line.split("  ")[0] for line in lines] == ["decode 1 x 128", "prefill 512", "whole prompt 128"]
    assert lines[0].endswith("1.50 (1.00-2.00)")
    assert lines[1].endswith("1.00 (1.00-1.00)")
    cases = [{"cases": {"decode-1x128": {"ms": [3.0, 1.0, 2.0]}}}, {"cases": {"decode-1x128": {"ms": [4.0]}}}]
    assert compare(cases[:1], cases[1:])[0].endswith("0.50")
    with pytest.raises(ValueError, match="zip"):
        compare([RESULTS], [])


@pytest.mark.model
def test_the_engine_alone_answers_a_closed_loop(model: Path) -> None:
    engine = LocalEngine(settings_of(model, "bfloat16"))
    try:
        answers, failures = engine.run([[index + 1, 5, 7] for index in range(5)], concurrency=2, max_tokens=4, timeout_s=60)
    finally:
        engine.stop()
    assert not failures
    assert [(answer.num_prompt_tokens, answer.num_output_tokens, len(answer.pieces_s)) for answer in answers] == [(3, 4, 4)] * 5
    assert all(answer.ttft_s > 0 for answer in answers)
    first_ends = sorted(answer.pieces_s[-1] for answer in answers)
    assert sorted(answer.sent_s for answer in answers)[2] >= first_ends[0], "more than two were in the engine"
