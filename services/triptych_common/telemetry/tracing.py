"""Spans. A service notes times as it works anyway, and makes a span when the work has ended, from what it then knows.

    context, span = tracer.begin("POST", parent, SpanKind.SERVER)   # a request: the parent's trace, or a new one
    ... context.traceparent ...                                     # goes to the next service, also if this trace is not sampled
    if span is not None:                                            # it is exported
        span.attributes[...] = ...
        tracer.end(span)

`span` is None if tracing is off or the trace is not sampled, so nothing is computed for a span that nobody gets.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Iterable, Iterator
from contextvars import ContextVar

from triptych.errors import StartupError
from triptych.installation import install_command

from triptych_common.telemetry.attributes import REQUEST_ID
from triptych_common.telemetry.logs import request_id_var
from triptych_common.telemetry.span import Span, SpanKind, SpanSink
from triptych_common.telemetry.trace_context import TraceContext, trace_var

_NS = 1_000_000_000
#: The span of the request that the current task works for; None if it is not exported. See `Tracer.request`.
request_span_var: ContextVar[Span | None] = ContextVar("request_span", default=None)


class Tracer:
    """Makes the spans of one service. Without a sink, tracing is off.

    Args:
        sampling_ratio: share of the traces that begin here that are sampled, 0 to 1.
    """

    def __init__(self, sink: SpanSink | None = None, sampling_ratio: float = 1.0) -> None:
        self._sink = sink
        # The rule of OpenTelemetry's TraceIdRatioBased, so that all services would decide the same about a trace id.
        self._bound = round(sampling_ratio * 2**64)

    @classmethod
    def to_collector(cls, service: str, instance_id: str, endpoint: str | None, sampling_ratio: float = 1.0) -> Tracer:
        """A tracer that exports over OTLP; off without an endpoint.

        Raises:
            StartupError: the packages for it are not installed.
        """
        if endpoint is None:
            return cls()
        try:
            from triptych_common.telemetry.export import OtlpSink
        except ImportError as error:
            hint = f"run: {install_command('triptych-server', 'tracing')}"
            raise StartupError(f"otlp_traces_endpoint needs packages that are not installed ({error}); {hint}") from error
        return cls(OtlpSink(service, instance_id, endpoint), sampling_ratio)

    def begin(
        self, name: str, parent: TraceContext | None, kind: SpanKind = SpanKind.SERVER
    ) -> tuple[TraceContext | None, Span | None]:
        """The context for the work on a request, and its span if it is exported.

        With a parent, the parent decides whether the trace is sampled. While tracing is off, the parent is passed on as it came.
        """
        if parent is not None or self._sink is None:
            span = self.child(name, parent, kind)
            context = parent if span is None else span.context
        else:
            trace_id = _random_id(128)
            context = TraceContext(trace_id, _random_id(64), trace_id & (2**64 - 1) < self._bound)
            span = Span(name, kind, context, None, time.time_ns()) if context.is_sampled else None
        if span is not None:
            span.attributes[REQUEST_ID] = request_id_var.get()
        return context, span

    def child(
        self, name: str, parent: TraceContext | None, kind: SpanKind = SpanKind.INTERNAL, start_ns: int | None = None
    ) -> Span | None:
        """A span for a part of sampled work. None if there is no parent, or it is not sampled, or tracing is off.

        Args:
            start_ns: by default now.
        """
        if self._sink is None or parent is None or not parent.is_sampled:
            return None
        context = TraceContext(parent.trace_id, _random_id(64), True, parent.tracestate)
        return Span(name, kind, context, parent, time.time_ns() if start_ns is None else start_ns)

    def end(self, span: Span, end_ns: int | None = None) -> None:
        """Export a span.

        Args:
            end_ns: by default now.
        """
        span.end_ns = max(span.start_ns, time.time_ns() if end_ns is None else end_ns)
        if self._sink is not None:
            self._sink.put(span)

    def stages(self, parent: Span, stages: Iterable[tuple[str, float]], start_ns: int | None = None) -> None:
        """Export stages of a span's work that followed each other, each with its time in seconds. Stages of no time are left out.

        Args:
            parent: has ended.
            start_ns: of the first stage; by default that of the parent.
        """
        at_ns = parent.start_ns if start_ns is None else start_ns
        for name, seconds in stages:
            # Durations are of another clock, so their sum may exceed the parent by a little.
            end_ns = min(at_ns + round(seconds * _NS), parent.end_ns)
            if end_ns > at_ns and (stage := self.child(name, parent.context, start_ns=at_ns)) is not None:
                self.end(stage, end_ns)
            at_ns = end_ns

    @contextlib.contextmanager
    def request(self, name: str, parent: TraceContext | None) -> Iterator[Span | None]:
        """`begin` a request that the block answers, and end its span after the block."""
        context, span = self.begin(name, parent)
        outer_span = request_span_var.set(span)
        try:
            with self._working_for(context, span):
                yield span
        finally:
            request_span_var.reset(outer_span)

    @contextlib.contextmanager
    def part(self, name: str, kind: SpanKind = SpanKind.INTERNAL) -> Iterator[Span | None]:
        """Make a span of the work in the block, which is a part of what the current task works for."""
        span = self.child(name, trace_var.get(), kind)
        if span is None:
            yield None
            return
        with self._working_for(span.context, span):
            yield span

    @contextlib.contextmanager
    def _working_for(self, context: TraceContext | None, span: Span | None) -> Iterator[None]:
        outer = trace_var.set(context)
        try:
            yield
        except BaseException as error:
            if span is not None:
                span.fail(error)
            raise
        finally:
            trace_var.reset(outer)
            if span is not None:
                self.end(span)

    def dropped_spans(self) -> int:
        """Spans since the start that ended and that no collector got."""
        return self._sink.num_dropped if self._sink is not None else 0

    async def close(self) -> None:
        """Send what is left, for at most 2 seconds."""
        if self._sink is not None:
            await asyncio.to_thread(self._sink.close)


#: For services without tracing.
OFF = Tracer()


def _random_id(num_bits: int) -> int:
    return random.getrandbits(num_bits) or 1
