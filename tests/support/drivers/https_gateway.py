"""A whole gateway with HTTPS, in this process."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from triptych_cli.stack.ports import free_port
from triptych_cli.stack.probes import http_ready
from triptych_gateway.main import serve
from triptych_gateway.settings import GatewaySettings

from support.certificates import authority


@asynccontextmanager
async def https_gateway(directory: Path, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A gateway with the certificate of a directory, and a client that trusts its authority."""
    port, stop = free_port("127.0.0.1"), asyncio.Event()
    task = asyncio.create_task(
        serve(GatewaySettings(port=port, grpc_port=0, https_dir=directory, shutdown_grace_s=0, **settings), stop)
    )
    ready = http_ready("127.0.0.1", port, is_https=True)
    try:
        async with asyncio.timeout(20):
            while not await _is_ready(ready):
                assert not task.done()
                await asyncio.sleep(0.02)
        async with httpx.AsyncClient(base_url=f"https://127.0.0.1:{port}", verify=trusting(), trust_env=False) as client:
            yield client
    finally:
        stop.set()
        await task


async def _is_ready(probe: Any) -> bool:
    try:
        return bool(await probe())
    except OSError:
        return False


def trusting() -> ssl.SSLContext:
    """For clients without a certificate that trust the authority `own`."""
    context = ssl.create_default_context()
    authority("own").configure_trust(context)
    return context
