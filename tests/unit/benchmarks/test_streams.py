"""What benchmarks/streams.py makes of what it measured, and the benchmark's list of parts."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator

import pytest
from bench import PARTS, commands
from charts import LineChart
from overhead import MIN_INTERVAL_S, interval_s, ticks
from report import render
from streams_report import charts, growth


def run_of(streams: int, gateway: float, frontend: float, wall: float, num_lost: int = 0) -> dict:
    times = {"ttft_p50_ms": 1500.0, "ttft_p99_ms": 2500.0, "gap_p50_ms": 20.0, "gap_p99_ms": None}
    return {
        "target": "Triptych",
        "streams": streams,
        "repeat": 0,
        "num_lost": num_lost,
        "wall_us_per_token": wall,
        "cpu_us_per_token": {"gateway": gateway, "frontend": frontend, "engine": 5000.0},
        "resident": {"gateway": 80_000_000, "frontend": 150_000_000, "engine": 10**9},
        "figures": {"num_ok": streams - num_lost, "num_failed": num_lost, **times},
    }


def overhead_of(service: str, streams: int, cost: float) -> dict:
    more = {"num_tokens": 1, "messages_per_token": 1.0, "tokens_per_s": 1e4, "idle_mb": 70.0, "peak_mb": 80.0}
    return {"service": service, "streams": streams, "cpu_us_per_token": cost, **more}


def results_of(runs: list[dict], overheads: list[dict]) -> dict:
    return {
        "kind": "streams",
        "command": "python benchmarks/streams.py",
        "date": "2026-01-31",
        "commit": "abc",
        "machine": {"cpu": "a processor", "cores": 2, "memory_gb": 16.0, "system": "Linux"},
        "versions": {"python": "3.11"},
        "busy_percent": {"all": 1.0, "own": 0.1},
        "load": {
            "model": "m",
            "prompt_words": 5,
            "max_tokens": 64,
            "min_requests": 16,
            "repeats": 1,
            "fake_tokens": 128,
            "tokens_per_s": 1e4,
        },
        "runs": runs,
        "overheads": overheads,
    }


def test_growth_is_told_from_64_streams_to_the_most() -> None:
    assert growth([(1, 90.0), (64, 50.0), (250, 70.0), (1000, 60.0)]) == pytest.approx(1.2)
    assert growth([(1, 90.0), (64, 50.0)]) is None
    assert growth([(8, 1.0), (1000, 2.0)]) is None


def test_the_tables_count_what_was_lost_and_tell_the_growth() -> None:
    runs = [run_of(64, 40, 20, 3000), run_of(1000, 50, 28, 2400, num_lost=2)]
    overheads = [
        overhead_of(service, streams, cost) for service in ("gateway", "frontend") for streams, cost in ((64, 50), (1000, 55))
    ]
    tables = render(results_of(runs, overheads), "results.json")
    assert "| 1,000 | 998 | 2 | 2400 | 50 | 28 | 5000 | 1.5 | 2.5 | 20 | - | 80 | 150 |" in tables
    assert "from 64 to 1,000 streams: wall time 0.80 times, CPU of gateway and frontend 1.30 times" in tables
    assert "gateway 1.10 times, frontend 1.10 times" in tables
    assert "](figures/streams-cpu.svg)" in tables
    assert "`python benchmarks/streams.py`" in tables


def test_without_fakes_their_table_and_lines_are_left_out() -> None:
    results = results_of([run_of(1, 40, 20, 3000), run_of(8, 40, 20, 2000)], [])
    assert "fake" not in render(results, "r.json").split("### ")[1]
    chart = charts(results)["cpu"]
    assert isinstance(chart, LineChart)
    assert [line.label for line in chart.lines] == ["gateway", "frontend"]
    wall = charts(results)["wall"]
    assert isinstance(wall, LineChart)
    assert wall.lines[0].points == [(1, 3.0), (8, 2.0)]


def test_streams_share_the_pace_as_far_as_it_is_sensible() -> None:
    assert interval_s(1000, 10_000) == 0.1
    assert interval_s(1, 10_000) == MIN_INTERVAL_S


async def test_ticks_keep_their_pace_and_do_not_make_up_for_what_took_long() -> None:
    started_s, times = time.monotonic(), []
    async for index in _numbered(ticks(0.05)):
        times.append(time.monotonic() - started_s)
        if index == 0:
            await asyncio.sleep(0.2)
        if index == 3:
            break
    assert times[0] >= 0.05
    # One at once, then at the pace again.
    assert times[2] - times[1] >= 0.04
    assert times[3] - times[2] >= 0.04


async def _numbered(source: AsyncIterator[None]) -> AsyncIterator[int]:
    count = itertools.count()
    async for _ in source:
        yield next(count)


def test_all_parts_are_run_unless_some_are_named() -> None:
    assert [command[0] for command in commands([])] == [f"{part}.py" for part in PARTS]
    assert commands(["steps", "streams"]) == [["steps.py", "--report"], ["streams.py", "--report"]]
    assert all("--report" in command for command in commands([]))


def test_a_part_takes_options_of_its_own() -> None:
    assert commands(["encoder", "llava", "--inside"]) == [["encoder.py", "llava", "--inside"]]
    assert commands(["serving", "--concurrency", "1"]) == [["serving.py", "--concurrency", "1"]]


@pytest.mark.parametrize("arguments", [["unknown"], ["--report"], ["steps", "streams", "--report"]])
def test_options_that_belong_to_no_part_are_refused(arguments: list[str]) -> None:
    with pytest.raises(ValueError, match="cannot make sense of"):
        commands(arguments)
