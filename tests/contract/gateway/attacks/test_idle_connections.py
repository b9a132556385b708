"""Connections that send nothing, or headers without an end, byte by byte."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest
from support.fakes.frontend import FakeFrontend, says
from support.fakes.gateway import CHAT, gateway_server
from triptych_gateway.connections import http_protocol


async def _end_of(host: str, port: int, start: bytes) -> bytes:
    """What a connection gets that sends a start and nothing more."""
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(start)
    async with asyncio.timeout(20):
        answer = await reader.read()
    writer.close()
    return answer


@pytest.mark.parametrize("start", [b"", b"GET /live HT", b"GET /live HTTP/1.1\r\nhost: x\r\nx-slow: "])
async def test_headers_that_do_not_come(monkeypatch: pytest.MonkeyPatch, start: bytes) -> None:
    monkeypatch.setattr(http_protocol, "HEADER_TIMEOUT_S", 0.2)
    async with gateway_server(FakeFrontend()) as (host, port):
        answer = await _end_of(host, port, start)
    # Who has sent nothing may take an answer for that to the next request.
    assert answer.startswith(b"HTTP/1.1 408") if start else answer == b""


async def test_headers_of_a_second_request_that_do_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "HEADER_TIMEOUT_S", 0.2)
    async with gateway_server(FakeFrontend()) as (host, port):
        answer = await _end_of(host, port, b"GET /live HTTP/1.1\r\nhost: x\r\n\r\nGET /live HTTP/1.1\r\n")
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"HTTP/1.1 408" in answer


async def test_an_empty_line_does_not_keep_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "HEADER_TIMEOUT_S", 0.2)
    async with gateway_server(FakeFrontend()) as (host, port):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.1)
        writer.write(b"\r\n")
        async with asyncio.timeout(20):
            rest = await reader.read()
        writer.close()
    assert head.startswith(b"HTTP/1.1 200")
    assert b"HTTP/1.1" not in rest


@pytest.mark.parametrize("next_request", [b"GE", b"GET /live HTTP/1.1\r\nx: " + b"y" * 100_000])
async def test_a_request_that_begins_too_early_does_not_break_the_answer(
    monkeypatch: pytest.MonkeyPatch, next_request: bytes
) -> None:
    monkeypatch.setattr(http_protocol, "HEADER_TIMEOUT_S", 0.1)
    frontend = FakeFrontend()
    gate = asyncio.Semaphore(0)
    frontend.script = says("a", "b", gate=gate)
    body = json.dumps(CHAT | {"stream": True}).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    head += f"content-length: {len(body)}\r\n\r\n"
    async with gateway_server(frontend) as (host, port):
        answer = asyncio.create_task(_end_of(host, port, head.encode() + body + next_request))
        await asyncio.sleep(0.5)
        for _ in range(10):
            gate.release()
        whole = await answer
    assert b"data: [DONE]" in whole
    assert whole.index(b"data: [DONE]") < whole.rindex(b"HTTP/1.1 4")


async def test_connections_have_a_limit_and_are_free_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "MAX_CONNECTIONS", 3)
    async with gateway_server(FakeFrontend()) as (host, port):
        idle = [(await asyncio.open_connection(host, port))[1] for _ in range(3)]
        assert (await _end_of(host, port, b"")).startswith(b"HTTP/1.1 503")
        for writer in idle:
            writer.close()
            await writer.wait_closed()
        async with httpx.AsyncClient(base_url=f"http://{host}:{port}") as client, asyncio.timeout(20):
            while (await client.get("/live")).status_code != 200:
                pass
