"""Running the gateway as a process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
from collections.abc import Iterator

import uvicorn
from pydantic import ValidationError
from pydantic_settings import CliApp
from triptych_common.errors import StartupError
from triptych_common.host.memory import return_large_blocks
from triptych_common.rpc.server import run_service
from triptych_common.settings import startup_error

from triptych_gateway.app import create_app
from triptych_gateway.settings import GatewaySettings

log = logging.getLogger(__name__)
_BACKLOG = 2048
#: Longer than load balancers and HTTP clients keep idle connections, so that they close them and never write into a closed one.
_KEEP_ALIVE_S = 75


def main() -> None:
    """Run with the settings of command line and environment."""
    try:
        settings = CliApp.run(GatewaySettings)
    except ValidationError as error:
        sys.exit(str(startup_error(error)))
    run(settings)


def run(settings: GatewaySettings) -> None:
    """Serve until SIGINT or SIGTERM; exits with 1 and one line when the gateway cannot start."""
    return_large_blocks()
    run_service("gateway", settings, lambda stop: serve(settings, stop))


async def serve(settings: GatewaySettings, stop: asyncio.Event) -> None:
    """Serve until the event is set; then requests in flight get their time to end. Raises StartupError when the port is taken."""
    listener = listen(settings.host, settings.port)
    app = create_app(settings)
    config = uvicorn.Config(
        app,
        http="httptools",
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE_S,
        # Only for what `stop_requests` does not end.
        timeout_graceful_shutdown=int(settings.shutdown_grace_s) + 5,
    )
    server = _Server(config)
    host, port = listener.getsockname()[:2]
    frontends = ", ".join(settings.frontend_addresses)
    log.info("listening on http://%s:%d, frontends at %s", f"[{host}]" if ":" in host else host, port, frontends)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait({serving, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    server.should_exit = True
    await asyncio.wait({serving}, timeout=settings.shutdown_grace_s)
    app.state.gateway.stop_requests()
    await serving


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers, which would end the process by the signal instead of with 0."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises StartupError naming host, port and flag when that is not possible."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        # Before uvicorn does it: only now is a port known to be taken that another listener shares.
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise StartupError(f"cannot listen on {host}:{port} ({error.strerror or error}); choose another with --port") from error
    return listener
