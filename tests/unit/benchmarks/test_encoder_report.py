"""The tables that results of benchmarks.encoder become."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.load.pictures import NEW
from benchmarks.report.document import DOCUMENT, write_document
from benchmarks.report.encoder import render
from benchmarks.report.tables import TRIPTYCH

PEER = "vLLM"


def turn_of(target: str, repeat: int, new_ms: float, beside_rate: float) -> dict:
    samples = []
    for case, ms in ((NEW, new_ms), ("the same again", new_ms / 4)):
        stages = ("decode_ms", "preprocess_ms", "encode_ms", "queue_ms", "transfer_ms", "fetch_ms")
        sample = {"case": case, "ttft_ms": ms, "file_bytes": 1000}
        if target != PEER:
            report = {"num_tokens": 10, **dict.fromkeys(stages, 1.5)}
            sample["report"] = report
        samples.append(sample)
    gaps = {"gap_p50_ms": 10.0, "gap_p99_ms": 20.0, "gap_max_ms": 30.0}
    flood = {
        "alone": {"seconds": 8.0, "output_tokens_per_s": 100.0, **gaps},
        "beside": {"seconds": 5.0, "output_tokens_per_s": beside_rate, **gaps},
        "num_pictures": 64,
        "num_failed": 0,
        "failures": {},
        "ttft_p50_ms": 900.0,
        "ttft_max_ms": 1800.0,
    }
    return {"target": target, "repeat": repeat, "samples": samples, "flood": flood}


def results_of(*runs: dict) -> dict:
    return {
        "command": "python -m benchmarks.encoder --model llava",
        "date": "2026-01-31",
        "commit": "abc",
        "machine": {"cpu": "a processor", "cores": 2, "memory_gb": 16.0, "system": "Linux"},
        "versions": {"python": "3.11"},
        "busy_percent": {"all": 1.0, "own": 0.1},
        "load": {"model": "llava", "size": 512, "pictures": 5, "flood": 64, "stream_tokens": 200, "rounds": 2},
        "cases": [NEW, "the same again"],
        "runs": list(runs),
    }


def test_the_table_holds_medians_and_ratios_within_a_round() -> None:
    rounds = [turn_of(TRIPTYCH, 0, 200, 80), turn_of(PEER, 0, 400, 10), turn_of(TRIPTYCH, 1, 100, 50), turn_of(PEER, 1, 50, 50)]
    tables = render(results_of(*rounds), "results.json")
    assert f"| TTFT, {NEW}, ms | 150.0 | 225.0 | 1.25 (0.50-2.00) |" in tables
    assert "| TTFT, the same again, ms | 37.5 | 56.2 | 1.25 (0.50-2.00) |" in tables
    assert "| text beside the flood, output tokens/s | 65.0 | 30.0 | 4.50 (1.00-8.00) |" in tables
    assert "| encoded | 1.5 |" in tables


def test_a_server_alone_has_no_ratios_and_a_peer_no_stages() -> None:
    assert "Triptych /" not in render(results_of(turn_of(TRIPTYCH, 0, 200, 80)), "results.json")
    assert "| encoded |" not in render(results_of(turn_of(PEER, 0, 200, 80)), "results.json")


def test_the_document_does_not_show_them(tmp_path: Path) -> None:
    results = tmp_path / "2026-01-31-encoder.json"
    results.write_text(json.dumps(results_of(turn_of(TRIPTYCH, 0, 123.4, 80))))
    document = tmp_path / "architecture" / "measurements.md"
    document.parent.mkdir()
    before = DOCUMENT.read_text(encoding="utf-8")
    document.write_text(before, encoding="utf-8")
    write_document(results, document)
    assert document.read_text(encoding="utf-8") == before
