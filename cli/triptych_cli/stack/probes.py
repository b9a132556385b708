"""Readiness probes: gRPC health on the control port or the health port, and `GET /ready` for the gateway.

Run as a program, this is the health check of containers: `python -m triptych_cli.stack.probes engine` exits with 0 when the engine
that has the same environment is ready. A URL, such as grpc://HOST:PORT, may stand in place of the service's name.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import sys
from collections.abc import Awaitable, Callable

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from triptych_common.rpc.channels import open_channel
from triptych_common.rpc.control import READINESS

from triptych_cli.stack.ports import connect_host

_TIMEOUT_S = 2.0


def grpc_ready(address: str) -> Callable[[], Awaitable[bool]]:
    """A probe that checks `readiness` with grpc.health.v1 at `host:port`."""

    async def is_ready() -> bool:
        async with open_channel(address) as channel:
            request = health_pb2.HealthCheckRequest(service=READINESS)
            try:
                response = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=_TIMEOUT_S)
            except grpc.aio.AioRpcError:
                return False
            return bool(response.status == health_pb2.HealthCheckResponse.SERVING)

    return is_ready


def http_ready(host: str, port: int, *, is_https: bool = False) -> Callable[[], Awaitable[bool]]:
    """A probe that expects a 200 from `GET /ready`. It asks this machine, so it does not check the certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if is_https else None
    if context is not None:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

    async def is_ready() -> bool:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                return await _get(host, port, "/ready", context) == 200
        except TimeoutError:
            return False

    return is_ready


async def _get(host: str, port: int, path: str, context: ssl.SSLContext | None) -> int:
    """The status of a GET request, without an HTTP client: it would be a dependency, with proxies and pools to turn off."""
    reader, writer = await asyncio.open_connection(host.strip("[]"), port, ssl=context)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode())
        status_line = await reader.readline()
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    parts = status_line.split()
    return int(parts[1]) if len(parts) > 1 and parts[1].isdigit() else 0


def main(target: str) -> int:
    """The exit code for one service, given by its name, or as grpc://host:port, http://host:port or https://host:port."""
    url = target if "://" in target else _url(target)
    scheme, _, address = url.partition("://")
    host, _, port = address.rpartition(":")
    probe = grpc_ready(address) if scheme == "grpc" else http_ready(host, int(port), is_https=scheme == "https")
    with contextlib.suppress(OSError):
        return 0 if asyncio.run(_await(probe)) else 1
    return 1


def _url(service: str) -> str:
    """Where a service is probed that takes its settings from this environment."""
    prefix = f"TRIPTYCH_{service.upper()}_"
    host = connect_host(os.environ.get(f"{prefix}HOST", "127.0.0.1"))
    if service != "gateway":
        return f"grpc://{host}:{os.environ[f'{prefix}HEALTH_PORT']}"
    scheme = "https" if f"{prefix}HTTPS_DIR" in os.environ else "http"
    return f"{scheme}://{host}:{os.environ.get(f'{prefix}PORT', '8000')}"


async def _await(probe: Callable[[], Awaitable[bool]]) -> bool:
    return await probe()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
