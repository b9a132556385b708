"""Options of connections between services, at a hundredth of their times."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import grpc
import pytest
from triptych_common.rpc.channels import CHANNEL_OPTIONS, SERVER_OPTIONS


def hurried(options: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    return [(name, value // 100 if "keepalive" in name or "ping_interval" in name else value) for name, value in options]


async def test_a_stream_on_which_nothing_is_said_lasts() -> None:
    """By default a server ends a connection for a third ping within five minutes."""

    async def silent(request: bytes, context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        yield b"begun"
        await asyncio.sleep(60)

    server = grpc.aio.server(options=hurried(SERVER_OPTIONS))
    handler = grpc.unary_stream_rpc_method_handler(silent)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test", {"Silent": handler})])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=hurried(CHANNEL_OPTIONS)) as channel:
            call = channel.unary_stream("/test/Silent")(b"")
            assert await call.read() == b"begun"
            with pytest.raises(TimeoutError):  # and not "Too many pings", which came after two seconds
                await asyncio.wait_for(call.read(), 4)
    finally:
        await server.stop(None)
