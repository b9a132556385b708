"""The exporter: its bounds, what it counts, and what it says when the collector is away."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from triptych.errors import StartupError
from triptych_common.telemetry import export
from triptych_common.telemetry.trace_context import TraceContext
from triptych_common.telemetry.tracing import Tracer

PARENT = TraceContext(1, 2, True)


class FakeExporter:
    """The SDK's exporter, without a network."""

    def __init__(self, endpoint: str, timeout: float) -> None:
        self.taken: list[str] = []
        self.result = SpanExportResult.SUCCESS
        self.gate = threading.Event()
        self.gate.set()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.gate.wait()
        if self.result is SpanExportResult.SUCCESS:
            self.taken += [span.name for span in spans]
        return self.result

    def shutdown(self) -> None:
        self.result = SpanExportResult.FAILURE
        self.gate.set()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Makes tracers; afterwards no thread of theirs is left."""
    monkeypatch.setattr(export, "OTLPSpanExporter", FakeExporter)
    monkeypatch.setattr(export, "_DELAY_S", 0.01)
    before, made = set(threading.enumerate()), []

    def make() -> tuple[Tracer, FakeExporter]:
        sink = export.OtlpSink("engine", "an-id", "http://collector:4317")
        made.append(sink)
        return Tracer(sink), sink._exporter._exporter  # type: ignore[return-value]

    yield make
    for sink in made:
        sink.close()
    wait_until(lambda: not set(threading.enumerate()) - before)


def wait_until(condition: Any) -> None:
    ends_s = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < ends_s
        time.sleep(0.002)


def put(tracer: Tracer, count: int) -> None:
    for number in range(count):
        span = tracer.child(f"span {number}", PARENT)
        assert span is not None
        tracer.end(span)


def test_all_spans_arrive_in_order(fake: Any) -> None:
    tracer, exporter = fake()
    put(tracer, 1000)
    wait_until(lambda: len(exporter.taken) == 1000)
    assert exporter.taken == [f"span {number}" for number in range(1000)]
    assert tracer.dropped_spans() == 0


async def test_the_last_spans_are_sent_when_the_process_ends(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "_DELAY_S", 3600.0)
    tracer, exporter = fake()
    put(tracer, 5)
    await tracer.close()
    assert len(exporter.taken) == 5
    assert tracer.dropped_spans() == 0


def test_the_queue_is_bounded_and_what_does_not_fit_is_counted(fake: Any) -> None:
    tracer, exporter = fake()
    exporter.gate.clear()
    put(tracer, export.MAX_QUEUED + 50)
    assert tracer.dropped_spans() == 50
    exporter.gate.set()
    wait_until(lambda: len(exporter.taken) == export.MAX_QUEUED)
    put(tracer, 1)
    wait_until(lambda: len(exporter.taken) == export.MAX_QUEUED + 1)
    assert tracer.dropped_spans() == 50


def test_a_collector_that_is_away_is_named_once(fake: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    tracer, exporter = fake()
    for outage in (1, 2):
        exporter.result = SpanExportResult.FAILURE
        for _ in range(3):
            before = tracer.dropped_spans()
            put(tracer, 10)
            wait_until(lambda expected=before + 10: tracer.dropped_spans() == expected)
        exporter.result = SpanExportResult.SUCCESS
        put(tracer, 1)
        wait_until(lambda expected=outage: len(exporter.taken) == expected)
    wait_until(lambda: len(caplog.records) == 4)
    away, back = (
        "the collector of traces at http://collector:4317 takes no spans; they are dropped until it does",
        "the collector of traces at http://collector:4317 takes spans again",
    )
    assert [(record.levelname, record.message) for record in caplog.records] == [("WARNING", away), ("INFO", back)] * 2
    assert tracer.dropped_spans() == 60


async def test_a_collector_that_hangs_does_not_hold_up_the_end(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "CLOSE_TIMEOUT_S", 0.2)
    tracer, exporter = fake()
    exporter.gate.clear()
    put(tracer, 10)
    start_s = time.monotonic()
    await tracer.close()
    assert time.monotonic() - start_s < 5
    wait_until(lambda: tracer.dropped_spans() == 10)


async def test_a_collector_that_was_away_gets_no_time_at_the_end(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "CLOSE_TIMEOUT_S", 3600.0)
    tracer, exporter = fake()
    exporter.result = SpanExportResult.FAILURE
    put(tracer, 1)
    wait_until(lambda: tracer.dropped_spans() == 1)
    await tracer.close()


def test_the_sdk_says_nothing_more(caplog: pytest.LogCaptureFixture, fake: Any) -> None:
    fake()
    caplog.set_level(logging.INFO)
    for name in export._SDK_LOGGERS:
        logging.getLogger(name).error("Failed to export traces")
    assert not caplog.records
    caplog.set_level(logging.DEBUG)
    logging.getLogger(export._SDK_LOGGERS[0]).error("Failed again")
    assert [record.message for record in caplog.records] == ["Failed again"], "who debugs sees it"


def test_packages_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "triptych_common.telemetry.export")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace.export", None)
    with pytest.raises(StartupError, match=r"otlp_traces_endpoint needs packages .*run: pip install .*\[tracing\]"):
        Tracer.to_collector("engine", "an-id", "http://collector:4317")
    assert Tracer.to_collector("engine", "an-id", None).begin("request", None) == (None, None)
