"""Two gateways are restarted one after the other, under a client that streams from both over gRPC: nothing is refused or cut."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from support.keys import KeyStore
from support.mock import mock_server, script
from triptych import AsyncClient
from triptych.errors import TriptychError
from triptych_cli.stack.ports import free_port

#: Of each kind.
_NUM_STREAMS = 8
#: A restart falls into the middle of the long answers. The short ones end at once: calls begin at every moment, also while a
#: gateway closes its port.
_NUM_TOKENS = 20
_LONG, _SHORT = script(numTokens=_NUM_TOKENS, tokenS=0.03), script(numTokens=1)


class _Gateway:
    """A gateway that can be started again on its port."""

    def __init__(self, frontend: str, keys: KeyStore) -> None:
        self._metadata = tuple(keys.headers("streams").items())
        self.port = free_port("127.0.0.1")
        self._flags = [
            "--port",
            "0",
            "--grpc-port",
            str(self.port),
            "--frontend-addresses",
            frontend,
            "--api-keys-file",
            str(keys.path),
        ]
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        command = [sys.executable, "-m", "triptych_gateway", *self._flags, "--no-access-log", "--log-level", "ERROR"]
        self._process = await asyncio.create_subprocess_exec(*command)
        async with asyncio.timeout(60), grpc.aio.insecure_channel(f"127.0.0.1:{self.port}") as channel:
            request = health_pb2.HealthCheckRequest(service="readiness")
            stub = health_pb2_grpc.HealthStub(channel)
            await stub.Check(request, wait_for_ready=True, metadata=self._metadata)  # type: ignore[misc]
            async for state in stub.Watch(request, metadata=self._metadata):
                if state.status == health_pb2.HealthCheckResponse.SERVING:
                    return

    async def stop(self) -> int:
        assert self._process is not None
        if self._process.returncode is None:
            os.kill(self._process.pid, signal.SIGTERM)
        return await self._process.wait()


@pytest.mark.long
async def test_nothing_is_refused_while_gateways_are_restarted(tmp_path: Path) -> None:
    keys = KeyStore(tmp_path / "keys.json")
    key = keys.add("streams", tenant="a")
    ended, failures, is_over = Counter[int](), list[str](), asyncio.Event()

    async def stream_all_the_time(client: AsyncClient, text: str) -> None:
        while not is_over.is_set():
            try:
                async with client.chat_stream(text) as stream:
                    await stream.until_done()
                ended[stream.response.usage.completion_tokens] += 1
            except TriptychError as error:
                failures.append(f"{error.code.name} {error.message}")

    async with AsyncExitStack() as stack:
        mock = await stack.enter_async_context(mock_server())
        gateways = [_Gateway(mock.address, keys) for _ in range(2)]
        for gateway in gateways:
            stack.push_async_callback(gateway.stop)
            await gateway.start()
        addresses = [f"127.0.0.1:{gateway.port}" for gateway in gateways]
        client = await stack.enter_async_context(AsyncClient(addresses, api_key=key, timeout_s=60))
        running = [asyncio.create_task(stream_all_the_time(client, text)) for text in [_LONG, _SHORT] * _NUM_STREAMS]
        await asyncio.sleep(1)
        for gateway in gateways:
            assert await gateway.stop() == 0
            await gateway.start()
            await asyncio.sleep(1)
        is_over.set()
        await asyncio.gather(*running)
    assert failures == []
    assert set(ended) == {_NUM_TOKENS, 1}
    assert ended[_NUM_TOKENS] > 4 * _NUM_STREAMS
