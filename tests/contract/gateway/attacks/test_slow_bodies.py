"""Clients that announce large bodies and hardly send them: they are refused, and other clients are served meanwhile."""

from __future__ import annotations

import asyncio
import time

import pytest
from support.fakes.frontend import FakeFrontend
from support.fakes.gateway import gateway_server
from support.gateway_process import GatewayProcess, gateway_process
from triptych_gateway.apis import json_body

MIB = 1 << 20
TIMEOUT_S = 3.0
#: If memory were reserved for what is announced, seven of them would leave less than an honest body needs.
ANNOUNCED = int(29.2 * MIB)


async def _slow_sender(port: int) -> tuple[float, bytes]:
    """Announce a large body, send one byte, and one more every 8 seconds. Returns the time until the end, and the answer."""
    start_s = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {ANNOUNCED}"
    writer.write(head.encode() + b"\r\n\r\n{")
    answer = asyncio.create_task(reader.read())
    while not (await asyncio.wait({answer}, timeout=8))[0]:
        writer.write(b" ")
    writer.close()
    return time.monotonic() - start_s, answer.result()


async def _honest(gateway: GatewayProcess) -> list[int]:
    """The statuses of bodies of half a megabyte, sent one after the other for as long as the slow senders are there."""
    statuses, body = [], b'{"model":"m","prompt":"' + b"x" * (MIB // 2) + b'"}'
    end_s = time.monotonic() + TIMEOUT_S - 1
    while time.monotonic() < end_s:
        statuses.append((await asyncio.to_thread(gateway.post, "/v1/completions", body))[0])
    return statuses


async def test_a_fast_beginning_earns_no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sends most of a large body at once, and then nothing."""
    monkeypatch.setattr(json_body, "PACE_S", 0.5)
    async with gateway_server(FakeFrontend()) as (host, port):

        async def stalls() -> bytes:
            reader, writer = await asyncio.open_connection(host, port)
            head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            writer.write(f"{head}content-length: {3 * MIB}\r\n\r\n".encode() + b'{"prompt":"' + b"x" * 2 * MIB)
            async with asyncio.timeout(20):
                answer = await reader.read()
            writer.close()
            return answer

        start_s = time.monotonic()
        answers = await asyncio.gather(*(stalls() for _ in range(5)))
    assert time.monotonic() - start_s < 15
    for answer in answers:
        assert answer.startswith(b"HTTP/1.1 408"), answer[:200]


async def test_slow_senders_get_408_and_honest_requests_are_not_refused() -> None:
    # Without a wait, an honest request that finds no memory is refused at once.
    flags = ("--body-timeout-s", str(TIMEOUT_S), "--body-wait-s", "0")
    with gateway_process(*flags) as gateway:
        slow = [asyncio.create_task(_slow_sender(gateway.port)) for _ in range(20)]
        await asyncio.sleep(0.5)
        statuses = await _honest(gateway)
        answers = await asyncio.gather(*slow)
    # No frontend is there: 503 is what a request gets whose body was read.
    assert set(statuses) == {503}
    for took_s, answer in answers:
        assert answer.startswith(b"HTTP/1.1 408"), answer[:200]
        assert b"connection: close" in answer.lower()
        assert b"body_timeout_s" in answer
        assert took_s >= TIMEOUT_S
