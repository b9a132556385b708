"""The benchmark of tracing: what it starts, what it counts, and what it takes for a failure."""

from __future__ import annotations

import sys

import pytest
from triptych_cli.stack.service_flags import split_service_args
from triptych_common.telemetry.trace_context import TraceContext
from triptych_common.telemetry.tracing import Tracer

from benchmarks.errors import BenchmarkError
from benchmarks.harness.child import Child
from benchmarks.harness.stack import checkout_env
from benchmarks.telemetry.tracing import SPANS_PER_TRACE, check, ratios, serve_flags


def a_kind(rate: float, traces: int, num_failed: int = 0, spans: int | None = None) -> dict:
    spans = traces * SPANS_PER_TRACE if spans is None else spans
    counts = {"num_ok": 100, "num_failed": num_failed, "failures": {}, "traces": traces, "spans": spans}
    return {"output_tokens_per_s": rate, "num_output_tokens": 1000, "cpu_s": {"engine": 10 / rate, "gateway": 1.0}, **counts}


def a_round(**kinds: dict) -> dict:
    return {"off": a_kind(100, 0), "10 %": a_kind(99, 11), "all": a_kind(95, 100)} | kinds


def test_the_ratio_is_that_of_one_round() -> None:
    rounds = [a_round(), a_round(off=a_kind(200, 0), all=a_kind(180, 100)), a_round(off=a_kind(50, 0), all=a_kind(48, 100))]
    found = ratios(rounds, "off")["all"]
    assert found["speed"] == pytest.approx(0.95)
    assert found["cpu"] == pytest.approx((1 + 10 / 180) / (1 + 10 / 200))


def test_a_whole_sitting_is_accepted() -> None:
    check([a_round(), a_round()])


@pytest.mark.parametrize(
    "kinds",
    [
        {"all": a_kind(95, 100, num_failed=1)},
        {"all": a_kind(95, 99)},
        {"all": a_kind(95, 100, spans=799)},
        {"off": a_kind(95, 1)},
        {"10 %": a_kind(95, 100)},
    ],
)
def test_what_is_missing_is_a_failure(kinds: dict) -> None:
    with pytest.raises(BenchmarkError):
        check([a_round(**kinds)])


def test_only_the_traced_kinds_have_flags() -> None:
    assert serve_flags("off", "http://c:1") == []
    rest, of_services = split_service_args(serve_flags("10 %", "http://c:1"))
    assert rest == ["--otlp-traces-endpoint", "http://c:1"]
    assert of_services["gateway"] == ["--trace-sampling-ratio", "0.1"]


async def test_the_collector_counts() -> None:
    with Child([sys.executable, "-m", "benchmarks.telemetry.collector"], checkout_env()) as collector:
        endpoint = collector.wait_for(r"collector at (\S+)", 60)[1]
        tracer = Tracer.to_collector("engine", "an-id", endpoint)
        for trace_id in (1, 2):
            for _ in range(3):
                span = tracer.child("span", TraceContext(trace_id, 1, True))
                assert span is not None
                tracer.end(span)
        await tracer.close()
        assert tracer.dropped_spans() == 0
        collector.send("count")
        assert collector.wait_for("got (.*)", 10)[1] == "6 spans of 2 traces"
