"""Streams whose answer has not begun stay open: headers and comments come while a request waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import httpx
import ollama
import openai
import pytest
from support.fakes.frontend import MODEL, FakeFrontend, fails, says
from support.fakes.gateway import CHAT, COMPLETION, gateway_server
from triptych.errors import ContextLengthError, InternalError
from triptych_gateway.generation import http as stream

MESSAGE = {"model": MODEL.name, "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
ROUTES = [
    ("/v1/chat/completions", CHAT),
    ("/v1/completions", COMPLETION),
    ("/v1/responses", {"model": MODEL.name, "input": "Hi"}),
    ("/v1/messages", MESSAGE),
]


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "_START_AFTER_S", 0.1)
    monkeypatch.setattr(stream, "_HEARTBEAT_S", 0.1)


@asynccontextmanager
async def gateway_url(frontend: FakeFrontend) -> AsyncIterator[str]:
    async with gateway_server(frontend) as (host, port):
        yield f"http://{host}:{port}"


def held() -> FakeFrontend:
    """A frontend that answers when it is allowed to."""
    frontend = FakeFrontend()
    frontend.script = says("Hel", "lo", gate=asyncio.Semaphore(0))
    return frontend


def allow(frontend: FakeFrontend) -> None:
    script: Any = frontend.script
    for _ in range(9):
        script.gate.release()


@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_a_stream_that_waits_is_started_and_kept_open(path: str, body: dict[str, Any]) -> None:
    frontend = held()
    async with (
        gateway_url(frontend) as url,
        asyncio.timeout(20),
        httpx.AsyncClient(base_url=url) as client,
        client.stream("POST", path, json=body | {"stream": True}) as response,
    ):
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = response.aiter_lines()
        comments = [line async for line in _until(lines, 3)]
        assert comments == [": still working"] * 3
        allow(frontend)
        rest = [line async for line in lines]
    text = "\n".join(rest)
    assert "Hel" in text
    assert "lo" in text


async def _until(lines: Any, number: int) -> Any:
    """So many comments."""
    async for line in lines:
        if line:
            yield line
            number -= 1
        if not number:
            return


async def test_lines_of_json_are_kept_open_by_lines_without_news() -> None:
    frontend = held()
    async with gateway_url(frontend) as url, asyncio.timeout(20):
        client = ollama.AsyncClient(url)
        asyncio.get_running_loop().call_later(0.4, allow, frontend)
        lines = [line async for line in await client.chat(**CHAT, stream=True)]
        await client.close()
    texts = [line.message.content for line in lines]
    assert len(lines) >= 5
    assert [text for text in texts if text] == ["Hel", "lo"]
    assert texts[:2] == ["", ""]
    assert [line.done for line in lines] == [False] * (len(lines) - 1) + [True]


async def test_the_official_clients_read_past_the_comments() -> None:
    frontend = held()
    async with gateway_url(frontend) as url, asyncio.timeout(20):
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0)
        asyncio.get_running_loop().call_later(0.4, allow, frontend)
        chunks = await client.chat.completions.create(**{**CHAT, "stream": True})
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in chunks]) == "Hello"
        await client.close()
        other = anthropic.AsyncAnthropic(base_url=url, api_key="x", max_retries=0)
        frontend.script = says("Hel", "lo", gate=asyncio.Semaphore(0))
        asyncio.get_running_loop().call_later(0.4, allow, frontend)
        async with other.messages.stream(**MESSAGE) as stream_:
            assert await stream_.get_final_text() == "Hello"
        await other.close()


@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_an_error_before_the_start_is_a_status_and_later_an_event(path: str, body: dict[str, Any]) -> None:
    frontend = FakeFrontend()
    async with gateway_url(frontend) as url, asyncio.timeout(20), httpx.AsyncClient(base_url=url) as client:
        frontend.script = fails(ContextLengthError("too long", field="messages", limit=1, value=2))
        response = await client.post(path, json=body | {"stream": True})
        assert response.status_code == 400
        frontend.script = says("a", "b", error=InternalError("it broke"), error_after=1, gate=asyncio.Semaphore(0))
        script: Any = frontend.script
        asyncio.get_running_loop().call_later(0.4, script.gate.release)
        response = await client.post(path, json=body | {"stream": True})
        assert response.status_code == 200
        assert response.text.startswith(": still working\n\n")
        assert "it broke" in response.text or "internal" in response.text.lower()
