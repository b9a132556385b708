"""When spans are made, and what they say."""

from __future__ import annotations

import asyncio
import importlib
import pkgutil
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased
from opentelemetry.semconv import attributes as stable
from opentelemetry.semconv._incubating import attributes as incubating
from opentelemetry.semconv.schemas import Schemas
from support.fakes.spans import KeptSpans
from triptych.errors import QueueFullError
from triptych_common.telemetry import attributes as names
from triptych_common.telemetry.logs import request_id_var
from triptych_common.telemetry.span import SpanKind
from triptych_common.telemetry.trace_context import TraceContext, trace_var
from triptych_common.telemetry.tracing import OFF, Tracer, request_span_var

SAMPLED, UNSAMPLED = TraceContext(1, 2, True, "a=1"), TraceContext(1, 2, False, "a=1")


def a_tracer(ratio: float = 1.0) -> tuple[Tracer, KeptSpans]:
    kept = KeptSpans()
    return Tracer(kept, ratio), kept


def test_without_tracing_a_trace_is_passed_on_as_it_came() -> None:
    assert OFF.begin("request", None) == (None, None)
    for parent in (SAMPLED, UNSAMPLED):
        context, span = OFF.begin("request", parent)
        assert context is parent
        assert span is None
    assert OFF.child("part", SAMPLED) is None
    assert OFF.dropped_spans() == 0


def test_a_parent_decides() -> None:
    tracer, _ = a_tracer(0.0)
    context, span = tracer.begin("request", SAMPLED)
    assert span is not None
    assert context == span.context
    assert (context.trace_id, context.is_sampled, context.tracestate) == (1, True, "a=1")
    assert context.span_id != SAMPLED.span_id
    assert span.parent == SAMPLED
    tracer, _ = a_tracer(1.0)
    context, span = tracer.begin("request", UNSAMPLED)
    assert context is UNSAMPLED
    assert span is None
    assert tracer.child("part", UNSAMPLED) is None
    assert tracer.child("part", None) is None


@given(st.integers(1, 2**128 - 1), st.floats(0, 1))
def test_a_trace_is_sampled_as_opentelemetry_samples_it(trace_id: int, ratio: float) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(random, "getrandbits", lambda num_bits: trace_id if num_bits == 128 else 7)
        context, span = a_tracer(ratio)[0].begin("request", None)
    expected = TraceIdRatioBased(ratio).should_sample(None, trace_id, "request").decision is Decision.RECORD_AND_SAMPLE
    assert context is not None
    assert context.is_sampled == (span is not None) == expected


def test_the_share_of_the_sampled_traces_is_the_ratio() -> None:
    tracer, _ = a_tracer(0.1)
    sampled = sum(tracer.begin("request", None)[1] is not None for _ in range(10_000))
    assert 800 < sampled < 1200  # six standard deviations


def test_what_is_not_sampled_has_a_place_in_its_trace_anyway() -> None:
    context, span = a_tracer(0.0)[0].begin("request", None)
    assert span is None
    assert context is not None
    assert not context.is_sampled, "so that the next service does not decide again"


def test_a_request_knows_its_id() -> None:
    tracer, kept = a_tracer()
    token = request_id_var.set("r-1")
    with tracer.request("request", None):
        pass
    request_id_var.reset(token)
    assert kept.named("request").attributes == {names.REQUEST_ID: "r-1"}


def test_parts_are_children_of_what_is_worked_for() -> None:
    tracer, kept = a_tracer()
    with tracer.request("request", None) as request:
        assert request is not None
        assert trace_var.get() == request.context
        assert request_span_var.get() is request
        with tracer.part("outer", SpanKind.CLIENT) as outer, tracer.part("inner") as inner:
            assert outer is not None
            assert inner is not None
            assert (outer.parent, inner.parent) == (request.context, outer.context)
    assert [span.name for span in kept.spans] == ["inner", "outer", "request"]
    assert trace_var.get() is None
    assert request_span_var.get() is None


@pytest.mark.parametrize(
    ("error", "reason", "is_cancelled"),
    [
        (QueueFullError("full"), "QUEUE_FULL", False),
        (ValueError("a secret"), "INTERNAL", False),
        (asyncio.CancelledError(), "", True),
        (GeneratorExit(), "", True),
    ],
)
def test_a_span_says_why_its_work_failed(error: BaseException, reason: str, is_cancelled: bool) -> None:
    tracer, kept = a_tracer()
    with pytest.raises(type(error)), tracer.request("request", None), tracer.part("part"):
        raise error
    for span in kept.spans:
        assert span.error == reason
        assert span.attributes.get(names.CANCELLED, False) is is_cancelled
        assert "secret" not in str(span)


@given(st.lists(st.floats(0, 3)), st.integers(0, 5_000_000_000), st.integers(0, 2_000_000_000))
def test_stages_follow_each_other_within_their_parent(durations_s: list[float], length_ns: int, offset_ns: int) -> None:
    tracer, kept = a_tracer()
    parent = tracer.child("request", SAMPLED)
    assert parent is not None
    tracer.end(parent, parent.start_ns + length_ns)
    start_ns = parent.start_ns + min(offset_ns, length_ns)
    tracer.stages(parent, [(str(number), seconds) for number, seconds in enumerate(durations_s)], start_ns)
    at_ns = start_ns
    for stage in kept.spans[1:]:
        assert stage.parent == parent.context
        assert stage.start_ns == at_ns < stage.end_ns <= parent.end_ns
        assert stage.end_ns - stage.start_ns <= durations_s[int(stage.name)] * 1e9 + 1
        at_ns = stage.end_ns


def test_a_clock_that_goes_back_makes_no_negative_times() -> None:
    tracer, kept = a_tracer()
    span = tracer.child("request", SAMPLED)
    assert span is not None
    tracer.end(span, span.start_ns - 1_000)
    assert kept.spans[0].end_ns == kept.spans[0].start_ns


def test_names_are_those_of_the_semantic_conventions() -> None:
    known = set()
    for package in (stable, incubating):
        for info in pkgutil.iter_modules(package.__path__):
            module = importlib.import_module(f"{package.__name__}.{info.name}")
            known |= {value for name, value in vars(module).items() if name.isupper() and isinstance(value, str)}
    ours = {name: value for name, value in vars(names).items() if name.isupper() and isinstance(value, str)}
    assert ours.pop("SCHEMA_URL") == Schemas.V1_44_0.value == list(Schemas)[-1].value, "the names are checked against this version"
    assert ours.pop("PROVIDER") == "triptych"
    for value in ours.values():
        assert value.startswith("triptych.") or value in known, value
    assert len(set(ours.values())) == len(ours)
