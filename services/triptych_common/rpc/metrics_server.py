"""An HTTP port that Prometheus can scrape, for gRPC services."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, Metric, ProcessCollector, make_wsgi_app
from triptych.errors import StartupError

from triptych_common.rpc.control import Controllable, State
from triptych_common.rpc.interceptors import CallCounts
from triptych_common.rpc.security.tls import Tls
from triptych_common.telemetry.metrics import build_info, counter, gauge, labelled_counter, model_info
from triptych_common.telemetry.tracing import Tracer

#: Collects a service's own metrics. Called on the event loop, which owns the counted state.
Collect = Callable[[], Iterable[Metric]]
#: Longest wait for the event loop, in seconds.
_COLLECT_TIMEOUT_S = 5.0
#: Connections at the same time at most, and longest wait for one to send or read, in seconds.
_MAX_SCRAPES, _SCRAPE_TIMEOUT_S = 16, 10.0
#: Time until a connection is accepted again after no file descriptor was free, in seconds.
_ACCEPT_PAUSE_S = 0.2


class MetricsServer:
    """Answers `GET /metrics` from its own thread.

    Args:
        name: name of the service; the prefix of its metrics.
        collect: the service's metrics in addition to those that all services have.
        calls: the gRPC calls that have ended.
        tracer: the service's.
        tls: the service's certificate; None without TLS.
    """

    def __init__(
        self,
        name: str,
        service: Controllable,
        collect: Collect | None,
        calls: CallCounts,
        tracer: Tracer,
        tls: Tls | None = None,
    ) -> None:
        self._name = name
        self._service = service
        self._collect = collect
        self._calls = calls
        self._tracer = tracer
        self._tls = tls
        self._server: WSGIServer | None = None
        self._thread: threading.Thread | None = None

    def start(self, host: str, port: int) -> int:
        """Listen. Returns the actual port. Call it on the event loop. Raises StartupError when the port is taken."""
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        registry.register(_OnLoop(asyncio.get_running_loop(), self._families))
        try:
            self._server = _listen(host, port, registry)
        except OSError as error:
            message = f"cannot listen on {host}:{port} (is the port taken?); choose another with --metrics-port"
            raise StartupError(message) from error
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()
        return int(self._server.server_port)

    async def stop(self) -> None:
        """Stop listening."""
        server, thread = self._server, self._thread
        if server is None or thread is None:
            return
        # The server checks for a shutdown twice a second.
        await asyncio.to_thread(server.shutdown)
        server.server_close()
        await asyncio.to_thread(thread.join)

    def _families(self) -> list[Metric]:
        service, prefix, model = self._service, f"triptych_{self._name}", self._service.model_info()
        return [
            build_info(self._name),
            model_info(self._name, [model.name] if model is not None else ()),
            gauge(f"{prefix}_ready", "1 while requests are taken.", service.state == State.SERVER_STATE_SERVING),
            gauge(f"{prefix}_live_requests", "Requests in hand.", service.num_live_requests),
            labelled_counter(f"{prefix}_grpc_calls", "gRPC calls that have ended.", ("method", "code"), self._calls),
            counter(f"{prefix}_spans_dropped", "Spans that no collector got.", self._tracer.dropped_spans()),
            *(self._tls.families(prefix) if self._tls is not None else ()),
            *(self._collect() if self._collect is not None else ()),
        ]


class _Server(ThreadingMixIn, WSGIServer):
    """A thread per scrape, and few at a time: others are closed. So no flood takes the threads and descriptors of the service."""

    daemon_threads = True
    #: Connections that wait to be accepted. What exceeds it is tried again by the client's system, after a second and more.
    request_queue_size = 128

    def __init__(self, *args: Any, **options: Any) -> None:
        self._places = threading.BoundedSemaphore(_MAX_SCRAPES)
        #: Connection -> when its scrape must be over, on the clock of time.monotonic.
        self._deadlines: dict[socket.socket, float] = {}
        super().__init__(*args, **options)

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return super().get_request()
        except OSError:
            # No descriptor is free. `serve_forever` would ask again at once, and spin.
            time.sleep(_ACCEPT_PAUSE_S)
            raise

    def verify_request(self, request: Any, client_address: Any) -> bool:
        return self._places.acquire(blocking=False)

    def process_request(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread began
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        self._deadlines[request] = time.monotonic() + _Handler.timeout
        try:
            super().process_request_thread(request, client_address)
        finally:
            del self._deadlines[request]
            self._places.release()

    def service_actions(self) -> None:
        # The handler's time-out is for each read: a client that sends a byte now and then would keep its place.
        for connection, end_s in [*self._deadlines.items()]:
            if time.monotonic() > end_s:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    """Logs nothing, and waits for no client longer than a scrape takes."""

    timeout = _SCRAPE_TIMEOUT_S

    def handle(self) -> None:
        with contextlib.suppress(TimeoutError, ConnectionError):
            super().handle()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base class
        pass


def _listen(host: str, port: int, registry: CollectorRegistry) -> WSGIServer:
    application = make_wsgi_app(registry)

    def in_plain_text(environ: dict[str, Any], start_response: Any) -> Any:
        # In OpenMetrics, which Prometheus prefers, the colon in vLLM's names would become an underscore.
        return application({**environ, "HTTP_ACCEPT": "text/plain; version=0.0.4"}, start_response)

    return make_server(host, port, in_plain_text, _Server6 if ":" in host else _Server, _Handler)


class _OnLoop:
    """A collector that reads its metrics on the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, families: Callable[[], list[Metric]]) -> None:
        self._loop = loop
        self._families = families

    def describe(self) -> list[Metric]:
        # Without this, `register` would call `collect` on the event loop, which would then wait for itself.
        return []

    def collect(self) -> list[Metric]:
        async def read() -> list[Metric]:
            return self._families()

        return asyncio.run_coroutine_threadsafe(read(), self._loop).result(_COLLECT_TIMEOUT_S)
