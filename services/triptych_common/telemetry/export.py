"""Exports spans over OTLP with OpenTelemetry's SDK, in batches from a thread. The only module that imports it.

Spans are kept in a queue of bounded length. What does not fit, and what the collector does not take, is dropped and counted.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, Status, StatusCode, TraceFlags, TraceState
from opentelemetry.trace import SpanKind as OtelKind

from triptych_common import __version__
from triptych_common.telemetry.attributes import ERROR_TYPE, SCHEMA_URL, SERVICE_INSTANCE_ID, SERVICE_NAME, SERVICE_VERSION
from triptych_common.telemetry.span import Span, SpanKind
from triptych_common.telemetry.trace_context import TraceContext

log = logging.getLogger(__name__)
#: Spans that wait, the batch in flight included: a few megabytes.
MAX_QUEUED = 4096
#: Small batches: encoding a span takes tens of microseconds, in which other threads wait for Python's lock.
_MAX_BATCH = 128
_DELAY_S = 1.0
#: Longest attempt to send a batch, and longest wait for the last spans when the process ends.
_EXPORT_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 2.0
_KINDS = {SpanKind.INTERNAL: OtelKind.INTERNAL, SpanKind.SERVER: OtelKind.SERVER, SpanKind.CLIENT: OtelKind.CLIENT}
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_OK, _ERROR = Status(StatusCode.UNSET), Status(StatusCode.ERROR)
#: The SDK logs each failed attempt there.
_SDK_LOGGERS = ("opentelemetry.exporter.otlp.proto.grpc.exporter", "opentelemetry.sdk._shared_internal")


class OtlpSink:
    """Sends the spans of one service to a collector.

    Args:
        service: gateway, frontend, encoder or engine.
        instance_id: unique to this process.
        endpoint: URL of the collector. http is plaintext. Headers and certificates come from OpenTelemetry's own environment
            variables.
    """

    def __init__(self, service: str, instance_id: str, endpoint: str) -> None:
        for name in _SDK_LOGGERS:
            logging.getLogger(name).addFilter(_only_for_debugging)
        names = {SERVICE_NAME: f"triptych-{service}", SERVICE_INSTANCE_ID: instance_id, SERVICE_VERSION: __version__}
        self._resource = Resource.create(names, SCHEMA_URL)
        self._scope = InstrumentationScope("triptych", __version__, SCHEMA_URL)
        self._exporter = _WatchedExporter(OTLPSpanExporter(endpoint=endpoint, timeout=_EXPORT_TIMEOUT_S), endpoint)
        self._processor = BatchSpanProcessor(
            self._exporter, max_queue_size=MAX_QUEUED, schedule_delay_millis=_DELAY_S * 1e3, max_export_batch_size=_MAX_BATCH
        )
        self._num_put = 0
        self._num_refused = 0

    @property
    def num_dropped(self) -> int:
        return self._num_refused + self._exporter.num_failed

    def put(self, span: Span) -> None:
        if self._num_put - self._exporter.num_ended >= MAX_QUEUED:
            self._num_refused += 1
            return
        self._num_put += 1
        self._processor.on_end(self._readable(span))

    def _readable(self, span: Span) -> ReadableSpan:
        return ReadableSpan(
            span.name,
            _context(span.context, is_remote=False),
            # The parent of a server's span is in another process.
            None if span.parent is None else _context(span.parent, is_remote=span.kind is SpanKind.SERVER),
            self._resource,
            {**span.attributes, ERROR_TYPE: span.error} if span.error else {**span.attributes},
            [Event(name, timestamp=at_ns) for name, at_ns in span.events],
            [Link(_context(linked, is_remote=True)) for linked in span.links],
            _KINDS[span.kind],
            status=_ERROR if span.error and span.is_failure else _OK,
            start_time=span.start_ns,
            end_time=span.end_ns,
            instrumentation_scope=self._scope,
        )

    def close(self) -> None:
        closing = threading.Thread(target=self._processor.shutdown, name="close tracing", daemon=True)
        closing.start()
        if not self._exporter.is_failing:
            closing.join(CLOSE_TIMEOUT_S)
        # Ends an attempt that still lasts. What is left is dropped.
        self._exporter.abort()
        closing.join(CLOSE_TIMEOUT_S / 4)


class _WatchedExporter(SpanExporter):
    """Counts what became of the spans, and logs once when a collector goes away, and once when it is back."""

    def __init__(self, exporter: OTLPSpanExporter, endpoint: str) -> None:
        self._exporter = exporter
        self._endpoint = endpoint
        self._is_aborted = False
        #: Spans that were sent or dropped, and those that were dropped.
        self.num_ended = 0
        self.num_failed = 0
        self.is_failing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:
            self._note(len(spans), is_sent=result is SpanExportResult.SUCCESS)
        return result

    def _note(self, num_spans: int, *, is_sent: bool) -> None:
        self.num_ended += num_spans
        if is_sent:
            if self.is_failing:
                log.info("the collector of traces at %s takes spans again", self._endpoint)
        else:
            self.num_failed += num_spans
            if not self.is_failing:
                log.warning("the collector of traces at %s takes no spans; they are dropped until it does", self._endpoint)
        self.is_failing = not is_sent

    def abort(self) -> None:
        """End the current attempt, and all further ones at once."""
        if not self._is_aborted:
            self._is_aborted = True
            self._exporter.shutdown()

    def shutdown(self) -> None:
        self.abort()


def _context(context: TraceContext, *, is_remote: bool) -> SpanContext:
    state = TraceState.from_header([context.tracestate]) if context.tracestate else None
    return SpanContext(context.trace_id, context.span_id, is_remote, _SAMPLED, state)


def _only_for_debugging(record: logging.LogRecord) -> bool:
    return log.isEnabledFor(logging.DEBUG)
