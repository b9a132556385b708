"""An HTTP port that Prometheus can scrape, for gRPC services."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Metric, ProcessCollector, start_http_server
from triptych.errors import StartupError

from triptych_common.rpc.control import Controllable, State
from triptych_common.telemetry.metrics import gauge

#: Collects a service's own metrics. Called on the event loop, which owns the counted state.
Collect = Callable[[], Iterable[Metric]]
#: Longest wait for the event loop, in seconds.
_COLLECT_TIMEOUT_S = 5.0


class MetricsServer:
    """Answers `GET /metrics` from its own thread.

    Args:
        name: name of the service; the prefix of its metrics.
        collect: the service's metrics in addition to those that all services have.
    """

    def __init__(self, name: str, service: Controllable, collect: Collect | None) -> None:
        self._prefix = f"triptych_{name}"
        self._service = service
        self._collect = collect
        self._server: WSGIServer | None = None
        self._thread: threading.Thread | None = None

    def start(self, host: str, port: int) -> int:
        """Listen. Returns the actual port. Call it on the event loop. Raises StartupError when the port is taken."""
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        registry.register(_OnLoop(asyncio.get_running_loop(), self._families))
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            message = f"cannot listen on {host}:{port} (is the port taken?); choose another with --metrics-port"
            raise StartupError(message) from error
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
        service = self._service
        return [
            gauge(f"{self._prefix}_ready", "1 while requests are taken.", service.state == State.SERVER_STATE_SERVING),
            gauge(f"{self._prefix}_live_requests", "Requests in hand.", service.num_live_requests),
            *(self._collect() if self._collect is not None else ()),
        ]


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
