"""Clients that do not read their answers: their requests end, and others do not notice."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import httpx
import pytest
from support.fakes.frontend import FakeFrontend, Script, text_deltas
from support.fakes.gateway import CHAT, gateway_server
from support.waiting import until
from triptych_gateway.connections import http_protocol

#: An answer far beyond what sockets keep.
_LONG = ["x" * 65_536] * 200


async def _ask_and_read_nothing(place: tuple[str, int], body: bytes) -> socket.socket:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, place)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\ncontent-length: {len(body)}\r\n\r\n"
    await loop.sock_sendall(client, head.encode() + body)
    return client


def _body(**fields: object) -> bytes:
    return httpx.Request("POST", "http://gateway", json=CHAT | fields).content


async def test_a_client_that_reads_nothing_loses_its_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(http_protocol, "READ_TIMEOUT_S", 0.5)
    frontend = FakeFrontend()
    # It goes on for as long as somebody takes it.
    frontend.script = lambda request: Script([text_deltas(*_LONG)])
    async with gateway_server(frontend) as place:
        with contextlib.ExitStack() as opened:
            opened.enter_context(await _ask_and_read_nothing(place, _body(stream=True)))
            await until(lambda: bool(frontend.requests))
            frontend.script = Script([text_deltas("Hel", "lo")])
            async with httpx.AsyncClient(base_url=f"http://{place[0]}:{place[1]}", trust_env=False) as honest:
                answer = await honest.post("/v1/chat/completions", json=CHAT)
                assert answer.json()["choices"][0]["message"]["content"] == "Hello"
                await until(lambda: "it is cut off" in caplog.text, 60)
                async with asyncio.timeout(10):
                    # The scrape is a request, too.
                    while "triptych_gateway_requests_in_flight 1.0" not in (await honest.get("/metrics")).text:  # noqa: ASYNC110
                        await asyncio.sleep(0.05)
        assert frontend.num_live == 0


async def test_a_whole_answer_that_nobody_reads_is_dropped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(http_protocol, "READ_TIMEOUT_S", 0.5)
    frontend = FakeFrontend()
    frontend.script = Script([text_deltas(*_LONG)])
    async with gateway_server(frontend) as place:
        silent = await _ask_and_read_nothing(place, _body())
        with silent:
            loop = asyncio.get_running_loop()
            await until(lambda: "it is cut off" in caplog.text, 60)
            num_bytes = 0
            with contextlib.suppress(ConnectionResetError):
                while chunk := await loop.sock_recv(silent, 1 << 16):
                    num_bytes += len(chunk)
            assert num_bytes < sum(map(len, _LONG))


async def test_a_slow_client_that_reads_on_keeps_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "READ_TIMEOUT_S", 0.5)
    # On a busy machine this client is as slow as the machine.
    monkeypatch.setattr(http_protocol, "MIN_READ_BYTES", 1)
    frontend = FakeFrontend()
    frontend.script = Script([text_deltas(*_LONG)])
    async with gateway_server(frontend) as place:
        slow = await _ask_and_read_nothing(place, _body(stream=True))
        with slow:
            loop, read = asyncio.get_running_loop(), bytearray()
            while not read.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
                chunk = await loop.sock_recv(slow, 1 << 18)
                assert chunk, bytes(read[-200:])
                read += chunk
                await asyncio.sleep(0.001)
    assert read.count(b"x") >= sum(map(len, _LONG))
