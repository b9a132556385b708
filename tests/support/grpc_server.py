"""A real gRPC server in this process, on a free port, for fakes and servicers under test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import grpc
from triptych_common.rpc.channels import SERVER_OPTIONS
from triptych_common.rpc.interceptors import CallInterceptor


@asynccontextmanager
async def serving(register: Callable[[grpc.aio.Server], None], port: int = 0) -> AsyncIterator[str]:
    """Serve what `register` adds, with the interceptor of all services. Yields the address."""
    server = grpc.aio.server(interceptors=[CallInterceptor()], options=SERVER_OPTIONS)
    register(server)
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)
