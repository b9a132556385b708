"""Clients that go away, frontends that come and go, gateways that stop."""

from __future__ import annotations

import asyncio
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager

import httpx
import orjson
import pytest
from support.fakes.frontend import FakeFrontend, running, says
from support.fakes.gateway import CHAT, gateway_server, serving_http
from triptych_gateway.app import create_app
from triptych_gateway.settings import GatewaySettings


async def post_raw(
    place: tuple[str, int], body: dict[str, object], path: str = "/v1/chat/completions"
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A chat request on a socket of its own."""
    reader, writer = await asyncio.open_connection(*place)
    content = orjson.dumps(body)
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    writer.write(head.encode() + content)
    await writer.drain()
    return reader, writer


@pytest.mark.parametrize("kind", ["reset", "close"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/api/chat"])
async def test_client_that_goes_away_cancels_the_call(path: str, stream: bool, kind: str) -> None:
    frontend = FakeFrontend()
    gate = asyncio.Semaphore(int(stream))
    frontend.script = says("a", "b", gate=gate)
    async with gateway_server(frontend) as place:
        reader, writer = await post_raw(place, CHAT | {"stream": stream}, path)
        if stream:
            await reader.readuntil(b'"content":"a"')
        else:
            await frontend.arrivals.get()
        if kind == "reset":
            writer.transport.abort()
        writer.close()
        async with asyncio.timeout(10):
            await frontend.was_cancelled.wait()
            async with httpx.AsyncClient(base_url="http://{}:{}".format(*place)) as client:
                metrics = ""
                while "triptych_gateway_requests_aborted_total{" not in metrics:
                    metrics = (await client.get("/metrics")).text
    assert frontend.num_live == 0
    assert f'triptych_gateway_requests_aborted_total{{route="{path}"}} 1.0' in metrics
    assert "triptych_gateway_requests_in_flight 1.0" in metrics  # The scrape itself.


async def test_many_streams_with_random_aborts_leave_nothing_behind() -> None:
    frontend = FakeFrontend()
    frontend.script = says(*(f"{number} " for number in range(30)))
    chance = random.Random(0)
    limit = asyncio.Semaphore(64)

    async def one(place: tuple[str, int], stop_after: int | None) -> str:
        async with limit:
            reader, writer = await post_raw(place, CHAT | {"stream": True})
            try:
                for _ in range(30 if stop_after is None else stop_after):
                    await reader.readuntil(b'"content":"')
                if stop_after is not None:
                    return "aborted"
                return "whole" if b"[DONE]" in await reader.readuntil(b"0\r\n\r\n") else "cut"
            finally:
                writer.close()

    stops = [chance.choice([None, None, chance.randrange(30)]) for _ in range(300)]
    async with gateway_server(frontend) as place:
        ends = await asyncio.gather(*(one(place, stop) for stop in stops))
        async with httpx.AsyncClient(base_url="http://{}:{}".format(*place)) as client, asyncio.timeout(20):
            while "triptych_gateway_requests_in_flight 1.0" not in (await client.get("/metrics")).text:
                pass
    assert ends == ["whole" if stop is None else "aborted" for stop in stops]
    assert frontend.num_live == 0


async def test_ready_follows_the_frontend() -> None:
    frontend = FakeFrontend()
    async with running(frontend, ready=False) as address:
        app = create_app(GatewaySettings(frontend_addresses=(address,)))
        async with serving_http(app) as place, httpx.AsyncClient(base_url="http://{}:{}".format(*place)) as client:
            assert (await client.get("/ready")).status_code == 503
            await frontend.health.set_ready(True)
            await until_ready(client, True)
            await frontend.health.set_ready(False)
            await until_ready(client, False)
            response = await client.get("/ready")
            assert response.headers["retry-after"]
            assert "not ready" in response.json()["error"]["message"]
            assert (await client.get("/live")).status_code == 200
            assert (await client.get("/health")).status_code == 200


async def test_frontend_that_dies_and_comes_back() -> None:
    frontend = FakeFrontend()
    frontend.script = says("a", "b", gate=asyncio.Semaphore(1))
    async with AsyncExitStack() as first_life:
        address = await first_life.enter_async_context(running(frontend))
        app = create_app(GatewaySettings(frontend_addresses=(address,)))
        async with serving_http(app) as place, httpx.AsyncClient(base_url="http://{}:{}".format(*place)) as client:
            await until_ready(client, True)
            reader, writer = await post_raw(place, CHAT | {"stream": True})
            await reader.readuntil(b'"content":"a"')
            await first_life.aclose()
            rest = await reader.readuntil(b"0\r\n\r\n")
            writer.close()
            await until_ready(client, False)
            refused = await client.post("/v1/chat/completions", json=CHAT)
            async with running(FakeFrontend(), port=int(address.rsplit(":", 1)[1])):
                await until_ready(client, True)
                answered = await client.post("/v1/chat/completions", json=CHAT)
    assert b'"code":"service_unavailable"' in rest
    assert b"data: [DONE]" in rest
    assert refused.status_code == 503
    assert answered.json()["choices"][0]["message"]["content"] == "Hello"


async def until_ready(client: httpx.AsyncClient, ready: bool) -> None:
    """Ask until this is the answer: the gateway learns it from a stream, a moment later."""
    async with asyncio.timeout(15):
        while ((await client.get("/ready")).status_code == 200) != ready:
            pass


@contextmanager
def gateway_process(*flags: str) -> Iterator[subprocess.Popen[str]]:
    """`python -m triptych_gateway`, killed at the end if it still lives."""
    command = [sys.executable, "-m", "triptych_gateway", "--grpc-port", "0", *flags]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def listening_port(process: subprocess.Popen[str]) -> int:
    """The port from the line that the process logs when it listens."""
    assert process.stderr is not None
    line = next(line for line in process.stderr if "listening on" in line)
    return int(line.split("http://", 1)[1].split(",")[0].rsplit(":", 1)[1])


@pytest.mark.parametrize("stop_signal", [signal.SIGTERM, signal.SIGINT])
async def test_stopped_process_ends_its_streams_and_exits_with_0(stop_signal: signal.Signals) -> None:
    frontend = FakeFrontend()
    frontend.script = says("a", "b", gate=asyncio.Semaphore(1))
    async with running(frontend) as address:
        with gateway_process("--port", "0", "--frontend-addresses", address, "--shutdown-grace-s", "0.2") as process:
            port = await asyncio.to_thread(listening_port, process)
            reader, writer = await post_raw(("127.0.0.1", port), CHAT | {"stream": True})
            await reader.readuntil(b'"content":"a"')
            process.send_signal(stop_signal)
            rest = await reader.read()
            writer.close()
            _, log = await asyncio.to_thread(process.communicate, None, 20)
    assert process.returncode == 0
    assert b"the gateway is stopping" in rest
    assert rest.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert "Traceback" not in log
    assert frontend.num_live == 0


async def test_stopping_process_lets_a_stream_finish() -> None:
    frontend = FakeFrontend()
    gate = asyncio.Semaphore(1)
    frontend.script = says("a", "b", gate=gate)
    async with running(frontend) as address:
        with gateway_process("--port", "0", "--frontend-addresses", address, "--shutdown-grace-s", "30") as process:
            port = await asyncio.to_thread(listening_port, process)
            reader, writer = await post_raw(("127.0.0.1", port), CHAT | {"stream": True})
            await reader.readuntil(b'"content":"a"')
            process.send_signal(signal.SIGTERM)
            for _ in range(2):
                gate.release()
            rest = await reader.read()
            writer.close()
            await asyncio.to_thread(process.communicate, None, 20)
    assert process.returncode == 0
    assert b'"content":"b"' in rest
    assert b"[DONE]" in rest


def test_taken_port_is_one_clear_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with gateway_process("--port", str(port)) as process:
            _, log = process.communicate(timeout=30)
    assert process.returncode == 1
    (line,) = log.splitlines()
    assert f"127.0.0.1:{port}" in line
    assert "--port" in line


@pytest.mark.parametrize("flags", [["--port", "seventy"], ["--max-body-bytes", "5"]])
def test_bad_setting_is_one_clear_line(flags: list[str]) -> None:
    with gateway_process(*flags) as process:
        _, log = process.communicate(timeout=30)
    assert process.returncode == 1
    (line,) = log.splitlines()
    assert flags[0].removeprefix("--").replace("-", "_") in line
    assert flags[1] in line
