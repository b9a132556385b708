"""What benchmarks/encoder.py makes of answers, counters and results."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from encoder_inside import services_of
from encoder_load import CASES, NEW, objection
from encoder_report import INSIDE, ratios, render, ttft, window
from encoder_wire import Traffic, parse_traffic
from figures import Answer, in_window
from load import Target
from pictures import about, chat, new_picture
from PIL import Image
from report import DOCUMENT, markers, write_document
from tables import TRIPTYCH
from triptych_cli.stack.plan import ServeOptions
from triptych_cli.stack.service_flags import SERVICES

PEER = "vLLM"


def test_a_window_takes_the_share_of_an_answer_that_came_in_it() -> None:
    answers = [Answer(0.0, [1.0, 2.0, 3.0, 4.0], num_output_tokens=8), Answer(4.5, [6.0, 6.5], num_output_tokens=2)]
    figures = in_window([answers], 2.5, 6.25)
    # 3.0 and 4.0 of two tokens each, and 6.0 of one.
    assert figures.output_tokens_per_s == pytest.approx(5 / 3.75)
    # 2-3 and 3-4 of the first answer, 6-6.5 of the second; between the two lies a wait and no gap.
    assert (figures.gap_p50_ms, figures.gap_max_ms) == (1000, 1000)
    assert figures.silence_max_ms == 2000


def test_a_gap_that_spans_the_whole_window_counts() -> None:
    figures = in_window([[Answer(0.0, [1.0, 9.0], 2)]], 2.0, 8.0)
    assert figures.output_tokens_per_s == 0
    assert (figures.gap_p99_ms, figures.gap_max_ms) == (8000, 8000)


def test_a_window_without_text_has_no_gaps() -> None:
    figures = in_window([[Answer(0.0, [1.0], 1)]], 2.0, 3.0)
    assert (figures.output_tokens_per_s, figures.gap_p50_ms, figures.silence_max_ms) == (0, None, None)


def test_traffic_is_read_from_what_prometheus_is_told() -> None:
    text = "# TYPE {0} counter\n{0} 4.0\n# TYPE {1} counter\n{1} 1000.0\nother 7\n".format(
        "triptych_encoder_uploaded_bytes_total", "triptych_encoder_fetched_bytes_total"
    )
    assert parse_traffic(text).since(Traffic(1, 100)) == Traffic(3, 900)
    with pytest.raises(KeyError):
        parse_traffic("other 7\n")


def test_an_answer_of_another_case_is_objected_to() -> None:
    def of(encoder_cache: str | None, source: str, cached: int) -> tuple[dict, dict]:
        report = {"encoder_cache": encoder_cache, "source": source, "num_tokens": 196}
        return report, {"prompt_tokens_details": {"cached_media_tokens": cached}}

    cases = {case.name: case for case in CASES}
    alone = cases["held by the encoder alone"]
    assert objection(alone, *of("hit", "encoder", 0)) is None
    assert "not hit" in (objection(alone, *of("miss", "encoder", 0)) or "")
    assert "engine, not encoder" in (objection(alone, *of("hit", "engine", 0)) or "")
    assert "192 of its 196" in (objection(alone, *of("hit", "encoder", 192)) or "")
    assert objection(cases[NEW], *of("miss", "encoder", 0)) is None
    assert objection(cases["the same again"], *of(None, "prefix_cache", 196)) is None


def test_pictures_are_jpegs_of_the_size_and_never_the_same() -> None:
    pictures = [new_picture(64) for _ in range(2)]
    assert pictures[0].file != pictures[1].file
    image = Image.open(io.BytesIO(pictures[0].file))
    assert (image.format, image.size) == ("JPEG", (64, 64))
    body = chat(Target("t", "http://t", "m"), about(pictures[0], "What?"), 8, ("Hi.", "Hello."))
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user"]
    assert [part["type"] for part in body["messages"][-1]["content"]] == ["image_url", "text"]
    assert (body["max_tokens"], body["stream_options"]) == (8, {"include_usage": True})


def test_inside_engine_and_encoder_have_all_cores_unless_told_otherwise() -> None:
    options = ServeOptions("model", port=0, frontend_port=0, encoder_port=0, engine_port=0)
    given: dict[str, list[str]] = {name: [] for name in SERVICES}
    services = services_of(options, {**given, "encoder": ["--num-threads", "3"]})
    assert list(services) == list(SERVICES)
    assert getattr(services["encoder"].settings, "num_threads") == 3  # noqa: B009
    assert services["engine"].address in services["frontend"].args
    assert services["encoder"].address in services["frontend"].args


def turn_of(target: str, repeat: int, new_ms: float, beside_rate: float) -> dict:
    samples = []
    for case, ms in ((NEW, new_ms), ("the same again", new_ms / 4)):
        uploaded, fetched = (1000, 2000) if case == NEW else (0, 0)
        stages = ("decode_ms", "preprocess_ms", "encode_ms", "queue_ms", "transfer_ms", "fetch_ms")
        sample = {"case": case, "ttft_ms": ms, "file_bytes": 1000}
        if target != PEER:
            report = {"num_tokens": 10, **dict.fromkeys(stages, 1.5)}
            sample.update(uploaded=uploaded, fetched=fetched, report=report)
        samples.append(sample)
    gaps = {"gap_p50_ms": 10.0, "gap_p99_ms": 20.0, "gap_max_ms": 30.0, "silence_max_ms": 40.0}
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
        "command": "python benchmarks/encoder.py llava",
        "date": "2026-01-31",
        "commit": "abc",
        "machine": {"cpu": "a processor", "cores": 2, "memory_gb": 16.0, "system": "Linux"},
        "versions": {"python": "3.11"},
        "busy_percent": {"all": 1.0, "own": 0.1},
        "load": {"model": "llava", "size": 512, "pictures": 5, "flood": 64, "stream_tokens": 200, "rounds": 2},
        "cases": [NEW, "the same again"],
        "embedding": {"hidden_size": 100, "itemsize": 2},
        "runs": list(runs),
    }


def test_a_ratio_is_taken_within_a_round() -> None:
    runs = [turn_of(TRIPTYCH, 0, 200, 80), turn_of(PEER, 0, 400, 10), turn_of(TRIPTYCH, 1, 100, 50)]
    assert ratios(runs, (TRIPTYCH, ttft(NEW)), (PEER, ttft(NEW))) == [0.5]
    rate = "output_tokens_per_s"
    assert ratios(runs, (TRIPTYCH, window("beside", rate)), (TRIPTYCH, window("alone", rate))) == [0.8, 0.5]
    assert ratios(runs, (TRIPTYCH, ttft("unknown")), (PEER, ttft("unknown"))) == []


def test_the_tables_hold_ratios_first_then_bytes_and_figures() -> None:
    rounds = [
        turn_of(name, repeat, new_ms, rate)
        for repeat in (0, 1)
        for name, new_ms, rate in ((TRIPTYCH, 200, 80), (INSIDE, 250, 40), (PEER, 400, 10))
    ]
    tables = render(results_of(*rounds), "results.json")
    assert "| the same again | 0.25 (0.25-0.25) | 0.25 (0.25-0.25) | 0.25 (0.25-0.25) |" in tables
    assert "| output tokens/s (more is better) | 0.80 (0.80-0.80) | 0.40 (0.40-0.40) | 0.10 (0.10-0.10) |" in tables
    assert "| text beside the flood, output tokens/s (more) | 8.00 (8.00-8.00) |" in tables
    assert f"| {NEW} | 1.000 | 1.000 | 1.0 | 1.0 | 2.0 |" in tables
    assert "| the same again | 0.000 | 0.000 | 1.0 | 0.0 | 0.0 |" in tables
    assert "| flood, s | 5.0 | 5.0 | 5.0 |" in tables
    assert "| encoded | 1.5 |" in tables
    parts = ("TTFT, against", "Four text streams", f"against {INSIDE}", f"against {PEER}", "Bytes on the wire", "Figures behind")
    order = [tables.index(part) for part in parts]
    assert order == sorted(order)


def test_only_the_part_on_pictures_changes(tmp_path: Path) -> None:
    results = tmp_path / "2026-01-31-encoder.json"
    results.write_text(json.dumps(results_of(turn_of(TRIPTYCH, 0, 123.4, 80))))
    document = tmp_path / "performance.md"
    before = DOCUMENT.read_text(encoding="utf-8")
    document.write_text(before, encoding="utf-8")
    write_document(results, document)
    after, (begin, end) = document.read_text(encoding="utf-8"), markers("encoder")
    assert "| TTFT, new picture, ms | 123.4 |" in after
    assert (after.partition(begin)[0], after.partition(end)[2]) == (before.partition(begin)[0], before.partition(end)[2])
