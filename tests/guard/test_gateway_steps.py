"""What a token costs in the gateway: Python calls, JSON, writes to sockets; and messages to the frontend.

A step brings one token to each of many sequences, and whatever is done per token in Python is done 10,000 times a second at 10,000
tokens per second. The numbers are exact: who adds a call changes a number here, and says why.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson
import pytest
from support.counting import assert_per_item, python_calls
from support.fakes.gateway import CHAT, COMPLETION, gateway_client, gateway_server
from support.fakes.stepped_frontend import SteppedFrontend
from support.waiting import until

FEW, MANY = 8, 64
NUM_CALLS = (1, FEW, MANY)
WARM_UP_STEPS = 3

# Per token: calls of our Python functions, and at most so many of built-in ones by those (an interpreter may do with fewer).
#: Out of the frontend's message into its request's mailbox; out of that as an event, past the middleware to the HTTP server.
#: /v1/responses: stored at its end, by a generator around that of the answer; an item and a writer of events with numbers.
CHAT_PATH, RESPONSES_PATH = "/v1/chat/completions", "/v1/responses"
CALLS = {CHAT_PATH: (15, 18), RESPONSES_PATH: (19, 24)}
BODIES = {CHAT_PATH: CHAT, RESPONSES_PATH: {"model": CHAT["model"], "input": "Hi"}}
PACKAGES = ("triptych_gateway", "triptych_common.telemetry", "prometheus_client", "fastapi", "starlette", "uvicorn.protocols")


class Clients:
    """Streams of the real gateway behind its real HTTP server, on sockets."""

    def __init__(self, frontend: SteppedFrontend, path: str) -> None:
        self._frontend = frontend
        self._path = path
        self._streams: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def open(self, host: str, port: int, num_streams: int) -> None:
        body = json.dumps(BODIES[self._path] | {"stream": True}).encode()
        head = f"POST {self._path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        for _ in range(num_streams):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(head + body)
            self._streams.append((reader, writer))
        await until(lambda: len(self._frontend.live) == num_streams)

    async def step(self) -> list[bytes]:
        """One token for each stream; the last chunk of HTTP that each one got."""
        self._frontend.say(' "token"')
        return await self._read(b"\n\n\r\n")

    async def end(self) -> None:
        self._frontend.finish()
        await self._read(b"0\r\n\r\n")
        for _, writer in self._streams:
            writer.close()

    async def _read(self, end: bytes) -> list[bytes]:
        async with asyncio.timeout(10):
            return [await reader.readuntil(end) for reader, _ in self._streams]


@asynccontextmanager
async def gateway_streams(num_streams: int, path: str = CHAT_PATH) -> AsyncIterator[Clients]:
    frontend = SteppedFrontend()
    clients = Clients(frontend, path)
    async with gateway_server(frontend) as (host, port):
        await clients.open(host, port, num_streams)
        for _ in range(WARM_UP_STEPS):
            await clients.step()
        yield clients
        await clients.end()


@pytest.mark.parametrize("path", CALLS)
async def test_the_gateway_takes_a_few_calls_per_token(path: str) -> None:
    async def step_of(num_streams: int) -> Counter[str]:
        async with gateway_streams(num_streams, path) as clients:
            with python_calls(*PACKAGES) as calls:
                await clients.step()
        return calls

    assert_per_item(await step_of(FEW), FEW, await step_of(MANY), MANY, *CALLS[path])


@pytest.mark.parametrize("num_streams", NUM_CALLS)
async def test_a_token_is_one_write_to_its_socket(num_streams: int, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[bytes] = []
    async with gateway_streams(num_streams) as clients:
        transport = asyncio.selector_events._SelectorSocketTransport  # type: ignore[attr-defined]
        write = transport.write
        monkeypatch.setattr(transport, "write", lambda self, data: (writes.append(bytes(data)), write(self, data))[1])
        chunks = await clients.step()
        monkeypatch.undo()
    assert sorted(writes) == sorted(chunks)


@pytest.mark.parametrize("path", CALLS)
async def test_of_a_token_only_its_text_is_serialised(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    serialised: list[object] = []
    dumps = orjson.dumps
    async with gateway_streams(FEW, path) as clients:
        monkeypatch.setattr(orjson, "dumps", lambda value, *args: (serialised.append(value), dumps(value, *args))[1])
        await clients.step()
        monkeypatch.undo()
    assert serialised == [' "token"'] * FEW


async def test_the_prompts_of_a_request_travel_in_one_message() -> None:
    frontend = SteppedFrontend()
    async with gateway_client(frontend) as client:
        body = COMPLETION | {"prompt": ["Once"] * MANY}
        answer = asyncio.create_task(client.post("/v1/completions", json=body))
        await until(lambda: len(frontend.live) == MANY)
        frontend.finish()
        assert (await answer).status_code == 200
    assert len(frontend.messages) == 1
