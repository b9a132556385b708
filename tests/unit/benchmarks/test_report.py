"""The tables and charts that a results file becomes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.harness.sitting import RESULTS
from benchmarks.report.document import (
    DOCUMENT,
    SHOWN,
    kind_of,
    markers,
    region,
    render,
    replace_between_markers,
    shown_results,
    write_document,
)
from benchmarks.report.serving import ENGINE_ALONE, charts, ratios
from benchmarks.report.tables import TRIPTYCH

PEER = "vLLM"
BEGIN, END = markers("serving")


def run_of(target: str, repeat: int, tokens_per_s: float, concurrency: int = 8, gap_ms: float | None = 20.0) -> dict:
    times = {"ttft_p50_ms": 100.0, "ttft_p99_ms": 200.0, "gap_p50_ms": gap_ms, "gap_p99_ms": gap_ms}
    figures = {"num_ok": 4, "num_failed": 0, "failures": {}, "output_tokens_per_s": tokens_per_s, **times}
    run = {"target": target, "concurrency": concurrency, "repeat": repeat, "figures": figures}
    return run | ({"peak": {"gateway": 80_000_000 + repeat * 10**6}} if target == TRIPTYCH else {})


def results_of(*runs: dict) -> dict:
    about = {"name": TRIPTYCH, "version": "abc", "commit": "abc", "command": "triptych serve m --port 0"}
    start = {"ready_s": 6.04, "first_answer_s": 6.5}
    servers = [about | {"idle": {"gateway": 70_000_000}, "cold_start": start}]
    if any(run["target"] == PEER for run in runs):
        servers.append({"name": PEER, "version": "0.32", "command": "vllm serve m"})
    return {
        "command": "python -m benchmarks.serving",
        "date": "2026-01-31",
        "commit": "abc",
        "machine": {"cpu": "a processor", "cores": 2, "memory_gb": 16.0, "system": "Linux"},
        "versions": {"python": "3.11"},
        "busy_percent": {"all": 1.0, "own": 0.1},
        "load": {"model": "m", "prompt_words": 20, "max_tokens": 128, "requests_per_stream": 3, "repeats": 2},
        "servers": servers,
        "runs": list(runs),
    }


def test_a_ratio_is_taken_within_a_round_and_never_across() -> None:
    runs = [run_of(TRIPTYCH, 0, 200), run_of(PEER, 0, 100), run_of(TRIPTYCH, 1, 90), run_of(PEER, 1, 30), run_of(TRIPTYCH, 2, 50)]
    assert ratios(runs, PEER, "output_tokens_per_s", 8) == [2.0, 3.0]
    assert ratios(runs, PEER, "output_tokens_per_s", 1) == []


def test_the_tables_hold_ratios_first_then_figures_memory_and_start() -> None:
    rates = {TRIPTYCH: 200.0, ENGINE_ALONE: 250.0, PEER: 80.0}
    rounds = [run_of(name, repeat, rate) for repeat in (0, 1) for name, rate in rates.items()]
    tables = render(results_of(*rounds), "results.json")
    assert "| 8 | 2.50 (2.50-2.50) | 1.00 (1.00-1.00) |" in tables
    assert "| 8 | 0.80 (0.80-0.80) |" in tables
    assert "| 8 | Triptych | 200.0 | 100.0 | 200.0 | 20.0 | 20.0 |" in tables
    assert "0 of 24 requests failed." in tables
    assert "| gateway | 70 | 81 |" in tables
    assert "6.0 s" in tables
    order = [tables.index(part) for part in (f"Triptych against {PEER}", "### Figures", "### Start and memory")]
    assert order == sorted(order)


def test_the_command_line_of_each_server_is_told_and_that_of_the_benchmark_is_in_the_file() -> None:
    tables = render(results_of(run_of(TRIPTYCH, 0, 10.0), run_of(PEER, 0, 5.0)), "results.json")
    assert "- Triptych abc: `triptych serve m --port 0`." in tables
    assert "- vLLM 0.32: `vllm serve m`." in tables
    assert tables.startswith("From [`results.json`](results.json), commit `abc`: a processor, 2 cores, 1 % busy before; m, ")
    assert "python -m" not in tables


def test_processor_time_per_token_has_a_table_and_of_streams_a_chart() -> None:
    runs = [run_of(TRIPTYCH, 0, 10.0) | {"cpu_us_per_token": {"engine": 4000.0, "gateway": 41.6}}]
    assert "| 8 | 4000, 42; 10.00 |" in render(results_of(*runs), "results.json")
    assert "Processor time" not in render(results_of(run_of(TRIPTYCH, 0, 10.0)), "results.json")
    made = charts(results_of(*runs) | {"kind": "streams"})
    assert [(line.label, line.points) for line in made["cpu"].lines] == [("gateway, Triptych", [(8, 41.6)])]


def test_a_run_without_gaps_and_without_others_is_rendered() -> None:
    tables = render(results_of(run_of(TRIPTYCH, 0, 10.0, concurrency=1, gap_ms=None)), "results.json")
    assert "| 1 | Triptych | 10.0 | 100.0 | 200.0 | - | - |" in tables
    assert "Triptych against" not in tables


def test_only_what_is_between_the_markers_changes() -> None:
    document = f"before\n{BEGIN}\nold\n{END}\nafter \\1\n"
    once = replace_between_markers(document, "serving", "new \\1")
    assert once == f"before\n{BEGIN}\n\nnew \\1\n\n{END}\nafter \\1\n"
    assert replace_between_markers(once, "serving", "new \\1") == once


@pytest.mark.parametrize("document", ["", f"{BEGIN}", f"{END} {BEGIN}", f"{BEGIN} {END} {BEGIN} {END}"])
def test_a_document_without_one_pair_of_markers_is_refused(document: str) -> None:
    with pytest.raises(ValueError, match="exactly one"):
        replace_between_markers(document, "serving", "new")


def test_the_document_of_this_repository_takes_tables(tmp_path: Path) -> None:
    results = tmp_path / "2026-01-31-serving.json"
    results.write_text(json.dumps(results_of(run_of(TRIPTYCH, 0, 123.4), run_of(PEER, 0, 100.0))))
    document = tmp_path / "architecture" / "measurements.md"
    document.parent.mkdir()
    document.write_text(DOCUMENT.read_text(encoding="utf-8"))
    write_document(results, document)
    assert "../../benchmarks/results/2026-01-31-serving.json" in document.read_text()
    assert "| 8 | 1.23 |" in document.read_text()
    assert "| 123.4 |" not in document.read_text(), "charts show the absolute figures"
    assert "](../figures/serving-throughput.svg)" in document.read_text()
    assert "Output tokens per second" in (tmp_path / "figures" / "serving-throughput.svg").read_text()


def test_the_document_of_this_repository_has_a_region_for_each_kind_that_it_shows() -> None:
    for kind in SHOWN:
        replace_between_markers(DOCUMENT.read_text(encoding="utf-8"), kind, "new")


def test_all_that_the_document_shows_can_be_made_again() -> None:
    document = DOCUMENT.read_text(encoding="utf-8")
    paths = shown_results(document)
    assert [kind_of(json.loads(path.read_text())) for path in paths] == list(SHOWN)
    for path in paths:
        assert region(json.loads(path.read_text()), f"../../benchmarks/results/{path.name}") in document


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_every_committed_file_can_be_read(path: Path) -> None:
    results = json.loads(path.read_text())
    if "machine" in results:  # the others are collections of several, made by hand
        assert render(results, path.name)


def test_results_from_before_there_were_kinds_are_told_apart() -> None:
    assert kind_of({"kind": "steps", "runs": []}) == "steps"
    assert (kind_of({"cases": []}), kind_of({"cold_start": {}})) == ("encoder", "serving")


def test_lines_are_medians_of_the_rounds_and_a_target_may_lack_some() -> None:
    runs = [run_of(TRIPTYCH, 0, 10, 1), run_of(TRIPTYCH, 0, 100), run_of(TRIPTYCH, 1, 300), run_of(PEER, 0, 50)]
    chart = charts(results_of(*runs))["throughput"]
    assert {line.label: line.points for line in chart.lines} == {TRIPTYCH: [(1, 10), (8, 200)], PEER: [(8, 50)]}
    assert chart.x_ticks == ((1, "1"), (8, "8"))
