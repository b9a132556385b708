"""A collector of traces: OpenTelemetry's TraceService over real gRPC. It keeps the spans, and shows traces as trees."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.proto.trace.v1 import trace_pb2
from triptych_common.telemetry import export
from triptych_common.telemetry.attributes import REQUEST_ID

from support.waiting import until

#: Clocks of one machine agree better than this.
_TOLERANCE_NS = 2_000_000


@dataclass
class Collected:
    """A span as the collector got it."""

    span: trace_pb2.Span
    resource: dict[str, Any]
    attributes: dict[str, Any]

    @property
    def name(self) -> str:
        return self.span.name

    @property
    def service(self) -> str:
        return self.resource["service.name"].removeprefix("triptych-")

    @property
    def is_failure(self) -> bool:
        return self.span.status.code == trace_pb2.Status.STATUS_CODE_ERROR


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Takes spans, unless it is told to be away."""

    def __init__(self) -> None:
        self.spans: list[Collected] = []
        self.address = ""
        self.is_away = False

    @property
    def endpoint(self) -> str:
        """The value of the setting."""
        return f"http://{self.address}"

    async def Export(
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: grpc.aio.ServicerContext
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        if self.is_away:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "away")
        for of_resource in request.resource_spans:
            resource = _values(of_resource.resource.attributes)
            for of_scope in of_resource.scope_spans:
                self.spans += [Collected(span, resource, _values(span.attributes)) for span in of_scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()

    def trace(self, request_id: str) -> list[Collected]:
        """All spans of the traces in which a span names this request."""
        ids = {one.span.trace_id for one in self.spans if one.attributes.get(REQUEST_ID) == request_id}
        return [one for one in self.spans if one.span.trace_id in ids]

    async def until_tree(self, request_id: str, expected: str, *, is_nested: bool = True) -> dict[str, Collected]:
        """Wait until the trace of a request looks like this: one span per line, indented below its parent, siblings by name.

        Args:
            is_nested: no part lasts longer than the whole. Parts of a request that was cancelled do.

        Returns the spans by service and name; of several, the first.
        """
        wanted = "\n".join(line.rstrip() for line in expected.strip("\n").splitlines())
        try:
            await until(lambda: tree(self.trace(request_id)) == wanted)
        except TimeoutError:
            found = tree(self.trace(request_id))
            assert found == wanted, f"\n{found}\n\ninstead of\n\n{wanted}"
        spans = self.trace(request_id)
        check_nesting(spans, is_nested=is_nested)
        return {f"{one.service}: {one.name}": one for one in reversed(spans)}


def tree(spans: Iterable[Collected]) -> str:
    """The spans as lines `service: name`, indented below their parents. Spans without a parent here are at the left."""
    by_id = {one.span.span_id: one for one in spans}
    children: dict[bytes, list[Collected]] = defaultdict(list)
    for one in by_id.values():
        parent_id = one.span.parent_span_id
        children[parent_id if parent_id in by_id else b""].append(one)

    def lines(parent_id: bytes, depth: int) -> list[str]:
        found = []
        for one in sorted(children[parent_id], key=lambda one: (one.service, one.name, one.span.start_time_unix_nano)):
            found += [f"{'  ' * depth}{one.service}: {one.name}", *lines(one.span.span_id, depth + 1)]
        return found

    return "\n".join(lines(b"", 0))


def check_nesting(spans: Iterable[Collected], *, is_nested: bool) -> None:
    """Assert that the spans are one tree in one trace, and that each one begins, and ends if `is_nested`, within its parent."""
    by_id = {one.span.span_id: one for one in spans}
    assert len({one.span.trace_id for one in by_id.values()}) == 1
    assert sum(one.span.parent_span_id not in by_id for one in by_id.values()) == 1
    for one in by_id.values():
        assert one.span.end_time_unix_nano >= one.span.start_time_unix_nano
        parent = by_id.get(one.span.parent_span_id)
        if parent is not None:
            assert one.span.start_time_unix_nano >= parent.span.start_time_unix_nano - _TOLERANCE_NS, (one.name, parent.name)
            if is_nested:
                assert one.span.end_time_unix_nano <= parent.span.end_time_unix_nano + _TOLERANCE_NS, (one.name, parent.name)


def _values(attributes: Iterable[common_pb2.KeyValue]) -> dict[str, Any]:
    return {one.key: _value(one.value) for one in attributes}


def _value(value: common_pb2.AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return getattr(value, kind)


@asynccontextmanager
async def collecting(monkeypatch: Any, delay_s: float = 0.02) -> AsyncIterator[Collector]:
    """A running collector. Services that start meanwhile send their spans more often than usual."""
    monkeypatch.setattr(export, "_DELAY_S", delay_s)
    collector, server = Collector(), grpc.aio.server()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    collector.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield collector
    finally:
        await server.stop(None)
        await asyncio.sleep(0)


@asynccontextmanager
async def refusing() -> AsyncIterator[str]:
    """The endpoint of a collector that takes no spans. Services that start meanwhile drop theirs soon."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        async with collecting(monkeypatch) as collector:
            collector.is_away = True
            yield collector.endpoint
