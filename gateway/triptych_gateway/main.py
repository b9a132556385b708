"""Running the gateway as a process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Iterator

import uvicorn
from triptych.errors import StartupError
from triptych_common.host.memory import return_large_blocks
from triptych_common.rpc.server import run_service
from triptych_common.settings import read_settings

from triptych_gateway.app import create_app
from triptych_gateway.connections.http_protocol import LimitedHttpProtocol
from triptych_gateway.connections.https import Https
from triptych_gateway.rpc.server import GrpcServer
from triptych_gateway.settings import GatewaySettings
from triptych_gateway.state import Gateway

log = logging.getLogger(__name__)
_BACKLOG = 2048
#: Longer than load balancers and HTTP clients keep idle connections. The peer therefore closes an idle connection first, and never
#: writes to one that the gateway has closed.
_KEEP_ALIVE_S = 75
#: A WebSocket gets a ping as often as a stream that waits gets a comment, because proxies close what is silent for a minute.
_PING_S = 15
#: A WebSocket whose client has not answered a ping for this long is closed, and what it waits for is cancelled.
_PONG_S = 20


def main() -> None:
    """Run with the settings from the command line and the environment."""
    run(read_settings("gateway", GatewaySettings))


def run(settings: GatewaySettings) -> None:
    """Serve until SIGINT or SIGTERM. If the gateway cannot start, print one line and exit with code 1."""
    return_large_blocks()
    run_service("gateway", settings, lambda stop: serve(settings, stop))


async def serve(settings: GatewaySettings, stop: asyncio.Event) -> None:
    """Serve until the event is set, then give requests in flight `shutdown_grace_s` to end.

    Raises:
        StartupError: the port is in use, or a certificate cannot be used.
    """
    https = Https(settings.https_dir) if settings.https_dir is not None else None
    app = create_app(settings)
    listener = listen(settings.host, settings.port)
    config = uvicorn.Config(
        app,
        http=LimitedHttpProtocol,
        ws="websockets-sansio",
        ws_max_size=settings.max_body_bytes,
        ws_ping_interval=_PING_S,
        ws_ping_timeout=_PONG_S,
        lifespan="on",
        log_config=None,
        log_level="warning",
        access_log=False,
        # X-Forwarded-For of others than these would be what the audit log says. uvicorn itself also trusts the loopback.
        forwarded_allow_ips=os.environ.get("FORWARDED_ALLOW_IPS", ""),
        server_header=False,
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE_S,
        # Applies only to connections that `stop_requests` does not end.
        timeout_graceful_shutdown=int(settings.shutdown_grace_s) + 5,
    )
    watch: asyncio.Task[None] | None = None
    if https is not None:
        config.load()
        config.http_protocol_class = https.protocol  # type: ignore[assignment]
        watch = asyncio.create_task(https.watched.watch(lambda: None), name="HTTPS certificate")
        app.state.gateway.metrics.add_certificate("https_certificate", lambda: https.watched.current.expiry_s)
    gateway: Gateway = app.state.gateway
    gateway.grpc_server = grpc_server = GrpcServer(gateway, https)
    grpc_port = grpc_server.listen()
    server = _Server(config)
    host, port = listener.getsockname()[:2]
    frontends = ", ".join(settings.frontend_addresses)
    scheme = "http" if https is None else "https"
    where = f"[{host}]" if ":" in host else host
    log.info("listening on %s://%s:%d, gRPC on port %d, frontends at %s", scheme, where, port, grpc_port, frontends)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait({serving, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    server.should_exit = True
    ending = {serving, asyncio.create_task(grpc_server.stop(settings.shutdown_grace_s))}
    await asyncio.wait(ending, timeout=settings.shutdown_grace_s)
    gateway.stop_requests()
    await asyncio.gather(*ending)
    if watch is not None:
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers. They would end the process by the signal instead of with exit code 0."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises StartupError, which names host, port and flag, if that is not possible."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        # Listen here and not in uvicorn: with SO_REUSEADDR, bind() can succeed on a port in use, and only listen() then fails.
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise StartupError(f"cannot listen on {host}:{port} ({error.strerror or error}); choose another with --port") from error
    return listener
