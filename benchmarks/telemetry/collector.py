"""A collector that counts spans and keeps none: `python -m benchmarks.telemetry.collector`.

It prints its address, and for each line on its standard input the numbers of spans and traces since the last one.
"""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc


class Counter(trace_service_pb2_grpc.TraceServiceServicer):
    """Counts what it gets."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_spans = 0
        self._trace_ids: set[bytes] = set()

    def Export(  # noqa: N802 - the contract's name
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        ids = [span.trace_id for group in request.resource_spans for scope in group.scope_spans for span in scope.spans]
        with self._lock:
            self._num_spans += len(ids)
            self._trace_ids.update(ids)
        return trace_service_pb2.ExportTraceServiceResponse()

    def take(self) -> tuple[int, int]:
        """The numbers of spans and of traces since the last call."""
        with self._lock:
            counts = self._num_spans, len(self._trace_ids)
            self._num_spans, self._trace_ids = 0, set()
        return counts


def main() -> None:
    # What is measured goes first: a real collector would run on another machine.
    os.nice(10)
    counter, server = Counter(), grpc.server(ThreadPoolExecutor(1))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(counter, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(f"collector at http://127.0.0.1:{port}", flush=True)
    for _ in sys.stdin:
        print("got {} spans of {} traces".format(*counter.take()), flush=True)
    server.stop(None)


if __name__ == "__main__":
    main()
