"""A real gRPC server in this process, on a free port, for fakes and servicers under test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import grpc
from triptych_common.rpc.channels import SERVER_OPTIONS
from triptych_common.rpc.interceptors import CallInterceptor
from triptych_common.rpc.security.access import AccessInterceptor
from triptych_common.rpc.security.tls import Tls


@asynccontextmanager
async def serving(register: Callable[[grpc.aio.Server], None], port: int = 0, tls: Tls | None = None) -> AsyncIterator[str]:
    """Serve what `register` adds, with the interceptors of all services. Yields the address."""
    access = [AccessInterceptor(tls)] if tls is not None else []
    server = grpc.aio.server(interceptors=[*access, CallInterceptor()], options=SERVER_OPTIONS)
    register(server)
    address = f"127.0.0.1:{port}"
    port = server.add_insecure_port(address) if tls is None else server.add_secure_port(address, tls.server_credentials())
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)
