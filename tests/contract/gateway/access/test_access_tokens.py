"""Tokens of answers that end before their usage is known."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import orjson
import pytest
from fastapi import FastAPI
from support.fakes.frontend import MODEL, Delta, FakeFrontend, Script, running, says
from support.fakes.gateway import CHAT, COMPLETION, serving_http, until_connected
from support.keys import KeyStore
from support.waiting import until
from triptych.errors import InternalError
from triptych.v1 import generation_pb2
from triptych_gateway.access.rates import Draw
from triptych_gateway.app import create_app
from triptych_gateway.settings import GatewaySettings

LIMIT = 10_000


@pytest.fixture
def keys(tmp_path: Path) -> KeyStore:
    store = KeyStore(tmp_path / "keys.json")
    store.add("key", tokens_per_minute=LIMIT)
    return store


@asynccontextmanager
async def still_server(
    frontend: FakeFrontend, keys: KeyStore, **settings: object
) -> AsyncIterator[tuple[FastAPI, httpx.AsyncClient]]:
    """A gateway on a socket, whose buckets do not fill, and a client with the key."""
    async with running(frontend) as address:
        app = create_app(GatewaySettings(frontend_addresses=(address,), api_keys_file=keys.path, **settings))
        async with (
            serving_http(app) as (host, port),
            httpx.AsyncClient(base_url=f"http://{host}:{port}", headers=keys.headers("key"), timeout=30) as client,
        ):
            await until(lambda: hasattr(app.state.gateway, "pool"))
            await until_connected(app)
            app.state.gateway.access._rates._clock = lambda: 0.0
            yield app, client


async def used(app: FastAPI, keys: KeyStore) -> float:
    """Tokens that the key has paid, when all its requests have ended."""
    access = app.state.gateway.access
    await until(lambda: access._places._taken == {})
    taken = await access._rates.take(keys.id("key"), [Draw("tokens", LIMIT, 0)])
    return LIMIT - float(taken.levels[0].left)


@pytest.mark.parametrize(
    ("first", "tokens"),
    [
        (Delta(text="x" * 800, prompt_tokens=300), 300 + 200),
        (Delta(reasoning="x" * 80, prompt_tokens=300), 300 + 20),
        (Delta(text="x", token_ids=range(50), prompt_tokens=300), 300 + 50),
        (Delta(text="x", prompt_tokens=300), 300 + 1),
        (Delta(tool_call=generation_pb2.ToolCallDelta(id="1", name="f", arguments="x" * 40), prompt_tokens=300), 300 + 10),
    ],
    ids=["text", "reasoning", "token ids", "a character", "tool call"],
)
async def test_a_client_that_leaves_pays_what_the_first_event_held(keys: KeyStore, first: Delta, tokens: int) -> None:
    frontend = FakeFrontend()
    frontend.script = Script([[first, Delta(text="more")]], gate=asyncio.Semaphore(1))
    async with still_server(frontend, keys) as (app, client):
        async with client.stream("POST", "/v1/chat/completions", json=CHAT | {"stream": True, "max_tokens": 5000}) as answer:
            await anext(answer.aiter_bytes())
        await frontend.was_cancelled.wait()
        assert await used(app, keys) == tokens


async def test_each_prompt_and_each_choice_is_counted(keys: KeyStore) -> None:
    frontend = FakeFrontend()
    choices = [[Delta(index=index, text="x", prompt_tokens=100), Delta(index=index, text="y")] for index in (0, 1)]
    frontend.script = lambda _: Script(choices, gate=asyncio.Semaphore(2))
    body = COMPLETION | {"prompt": ["a", "b"], "n": 2, "stream": True, "max_tokens": 500}
    async with still_server(frontend, keys) as (app, client):
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            seen = b""
            async for part in answer.aiter_bytes():
                seen += part
                if seen.count(b'"text":"x"') == 4:
                    break
        await frontend.was_cancelled.wait()
        assert await used(app, keys) == 2 * 100 + 4


@pytest.mark.parametrize(("after", "tokens"), [(0, 0), (1, 300 + 200)])
async def test_a_stream_that_breaks_off_pays_what_came(keys: KeyStore, after: int, tokens: int) -> None:
    frontend = FakeFrontend()
    first = Delta(text="x" * 800, prompt_tokens=300)
    frontend.script = Script([[first, Delta(text="more")]], error=InternalError("broken"), error_after=after)
    async with still_server(frontend, keys) as (app, client):
        await client.post("/v1/chat/completions", json=CHAT | {"stream": True, "max_tokens": 5000})
        assert await used(app, keys) == tokens


@pytest.mark.parametrize("stream", [False, True])
async def test_a_background_response_that_is_cancelled_pays_what_was_made(keys: KeyStore, stream: bool, tmp_path: Path) -> None:
    frontend, log = FakeFrontend(), tmp_path / "audit.jsonl"
    frontend.script = Script([[Delta(text="x" * 400, prompt_tokens=300), Delta(text="more")]], gate=asyncio.Semaphore(1))
    body = {"model": MODEL.name, "input": "Hi", "background": True, "stream": stream, "max_output_tokens": 5000}
    async with still_server(frontend, keys, audit_log=str(log)) as (app, client):
        async with client.stream("POST", "/v1/responses", json=body) as answer:
            await anext(answer.aiter_bytes())
        (run,) = app.state.responses.background.runs.values()
        first_tokens = app.state.gateway.metrics.ttft["/v1/responses"]
        await until(lambda: sum(first_tokens.counts) == 1)
        cancelled = await client.post(f"/v1/responses/{run.response_input.response_id}/cancel")
        assert cancelled.json()["status"] == "cancelled"
        assert await used(app, keys) == 300 + 100
    (told,) = [line for line in map(orjson.loads, log.read_bytes().splitlines()) if line["event"] == "background"]
    assert told["aborted"] is True


async def test_a_background_response_that_is_cancelled_before_its_first_token_pays_what_it_reserved(keys: KeyStore) -> None:
    frontend = FakeFrontend()
    frontend.script = says("a", gate=asyncio.Semaphore(0))
    body = {"model": MODEL.name, "input": "Hi", "background": True, "max_output_tokens": 5000}
    async with still_server(frontend, keys) as (app, client):
        made = (await client.post("/v1/responses", json=body)).json()
        await frontend.arrivals.get()
        await client.post(f"/v1/responses/{made['id']}/cancel")
        assert 5000 < await used(app, keys) < 5100
