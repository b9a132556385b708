"""Limits of keys: requests at the same time, tokens of answers that end in all ways, priority, models, and turns on a WebSocket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import orjson
import pytest
import websockets
from fastapi import FastAPI
from support.fakes.frontend import MODEL, FakeFrontend, fails, says
from support.fakes.gateway import CHAT, COMPLETION, client_of, gateway_app, gateway_client, gateway_server
from support.keys import KeyStore
from support.waiting import until
from triptych.errors import InternalError, InvalidRequestError
from triptych.v1 import generation_pb2
from triptych_gateway.access.rates import Draw

#: Of the fake frontend's answers.
USED = 10
LIMIT = 1000


@pytest.fixture
def keys(tmp_path: Path) -> KeyStore:
    return KeyStore(tmp_path / "keys.json")


async def left(app: FastAPI, keys: KeyStore, name: str, per_minute: int = LIMIT) -> float:
    """Tokens that the key has left."""
    taken = await app.state.gateway.access._rates.take(keys.id(name), [Draw("tokens", per_minute, 0)])
    return float(taken.levels[0].left)


@asynccontextmanager
async def still_app(frontend: FakeFrontend, keys: KeyStore) -> AsyncIterator[tuple[FastAPI, httpx.AsyncClient]]:
    """A gateway whose buckets do not fill, because their clock stands still."""
    async with gateway_app(frontend, api_keys_file=keys.path) as app, client_of(app) as client:
        app.state.gateway.access._rates._clock = lambda: 0.0
        yield app, client


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("max_tokens", [None, 500])
async def test_tokens_are_settled_with_what_was_used(keys: KeyStore, stream: bool, max_tokens: int | None) -> None:
    keys.add("key", tokens_per_minute=LIMIT)
    async with still_app(FakeFrontend(), keys) as (app, client):
        answer = await client.post(
            "/v1/chat/completions", json=CHAT | {"stream": stream, "max_tokens": max_tokens}, headers=keys.headers("key")
        )
        told = int(answer.headers["x-ratelimit-remaining-tokens"])
        assert answer.headers["x-ratelimit-limit-tokens"] == str(LIMIT)
        assert answer.headers["x-ratelimit-reset-tokens"].endswith("s")
        # The answer's headers are sent before its end is known: they tell what is reserved.
        assert told < LIMIT - 500 if max_tokens else LIMIT - 100 < told < LIMIT
        await until(lambda: app.state.gateway.access._places._taken == {})
        assert await left(app, keys, "key") == LIMIT - USED


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/responses", "/v1/messages"])
async def test_tokens_of_other_dialects(keys: KeyStore, path: str) -> None:
    keys.add("key", tokens_per_minute=LIMIT)
    fields = {"input": "x"} if path != "/v1/messages" else {"messages": CHAT["messages"], "max_tokens": 7}
    async with still_app(FakeFrontend(), keys) as (app, client):
        for _ in range(3):
            await client.post(path, json={"model": MODEL.name, **fields}, headers=keys.headers("key"))
        assert await left(app, keys, "key") == LIMIT - 3 * (5 if path == "/v1/embeddings" else USED)


@pytest.mark.parametrize("error", [InvalidRequestError("no"), InternalError("broken")])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_fails_gives_its_tokens_back(keys: KeyStore, error: Exception, stream: bool) -> None:
    keys.add("key", tokens_per_minute=LIMIT, max_concurrent_requests=1)
    frontend = FakeFrontend()
    frontend.script = fails(error)  # type: ignore[arg-type]
    async with still_app(frontend, keys) as (app, client):
        for _ in range(3):
            answer = await client.post(
                "/v1/chat/completions", json=CHAT | {"max_tokens": 900, "stream": stream}, headers=keys.headers("key")
            )
            assert answer.status_code in (400, 500)
        assert await left(app, keys, "key") == LIMIT


async def test_tokens_of_a_client_that_leaves_are_those_that_it_may_have_got(keys: KeyStore) -> None:
    keys.add("key", tokens_per_minute=LIMIT, max_concurrent_requests=1)
    frontend = FakeFrontend()
    frontend.script = says("a", "b", "c", gate=asyncio.Semaphore(1))
    async with (
        gateway_server(frontend, api_keys_file=keys.path) as (host, port),
        httpx.AsyncClient(base_url=f"http://{host}:{port}", headers=keys.headers("key"), timeout=30) as client,
    ):
        body = CHAT | {"max_tokens": 900}
        async with client.stream("POST", "/v1/chat/completions", json=body | {"stream": True}) as answer:
            assert answer.status_code == 200
            await anext(answer.aiter_bytes())
            refused = await client.post("/v1/chat/completions", json=CHAT)
            assert refused.status_code == 429, "its place is taken"
        await frontend.was_cancelled.wait()
        frontend.script = says("Hello")
        # With the 900 tokens that were reserved, this would be refused.
        again = await client.post("/v1/chat/completions", json=body)
        while again.status_code == 429 and "concurrent" in again.text:
            again = await client.post("/v1/chat/completions", json=body)
    assert again.status_code == 200, again.text


async def test_a_prompt_that_is_larger_than_what_is_left_is_refused(keys: KeyStore) -> None:
    keys.add("key", tokens_per_minute=LIMIT)
    async with gateway_client(api_keys_file=keys.path) as client:
        first = await client.post("/v1/completions", json=COMPLETION | {"max_tokens": 10**9}, headers=keys.headers("key"))
        assert first.status_code == 200, "larger than the bucket: it waits for a full one, and this one is full"
        second = await client.post("/v1/completions", json=COMPLETION | {"max_tokens": 10**9}, headers=keys.headers("key"))
    assert second.status_code == 429
    error = second.json()["error"]
    assert (error["type"], error["code"]) == ("tokens", "rate_limit_exceeded")
    assert f"limit {LIMIT}" in error["message"]
    assert f"requested {LIMIT}" in error["message"]
    assert second.headers["retry-after"] == "1"


async def test_requests_at_the_same_time(keys: KeyStore) -> None:
    keys.add("two", max_concurrent_requests=2)
    keys.add("other", max_concurrent_requests=1)
    frontend, gate = FakeFrontend(), asyncio.Semaphore(0)
    frontend.script = says("Hello", gate=gate)
    async with gateway_client(frontend, api_keys_file=keys.path) as client:

        def ask(name: str, stream: bool) -> asyncio.Task[httpx.Response]:
            return asyncio.create_task(
                client.post("/v1/chat/completions", json=CHAT | {"stream": stream}, headers=keys.headers(name))
            )

        running = [ask("two", False), ask("two", True)]
        await until(lambda: len(frontend.requests) == 2)
        refused = await ask("two", False)
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "1"
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        other = ask("other", False)
        await until(lambda: len(frontend.requests) == 3)
        for _ in range(6):
            gate.release()
        assert [answer.status_code for answer in await asyncio.gather(*running, other)] == [200] * 3
        gate.release()
        gate.release()
        assert (await ask("two", False)).status_code == 200
    assert len(frontend.requests) == 4


async def test_a_background_response_keeps_its_place_and_its_tokens_until_it_ends(keys: KeyStore) -> None:
    keys.add("key", max_concurrent_requests=1, tokens_per_minute=LIMIT, requests_per_minute=100)
    frontend, gate = FakeFrontend(), asyncio.Semaphore(0)
    frontend.script = says("Hello", gate=gate)
    body = {"model": MODEL.name, "input": "Hi", "background": True, "max_output_tokens": 800}
    async with still_app(frontend, keys) as (app, client):
        headers = keys.headers("key")
        made = await client.post("/v1/responses", json=body, headers=headers)
        assert made.status_code == 200
        assert (await client.post("/v1/responses", json=body, headers=headers)).status_code == 429
        assert await left(app, keys, "key") < LIMIT - 700
        gate.release()
        gate.release()
        await until(lambda: not app.state.responses.background.runs)
        assert await left(app, keys, "key") == LIMIT - USED
        stored = await client.get(f"/v1/responses/{made.json()['id']}", headers=headers)
    assert stored.json()["status"] == "completed"


@pytest.mark.parametrize(
    ("of_key", "asked", "given"),
    [(0, None, 0), (0, -5, 0), (0, 7, 7), (-3, None, -3), (-3, -9, -3), (-3, 0, 0), (4, None, 4), (4, 1, 4), (None, -5, -5)],
)
async def test_a_request_runs_no_earlier_than_its_key_may(
    keys: KeyStore, of_key: int | None, asked: int | None, given: int
) -> None:
    keys.add("key", priority=of_key)
    frontend = FakeFrontend()
    fields = {"model": MODEL.name, "priority": asked}
    async with gateway_client(frontend, api_keys_file=keys.path) as client:
        for path, more in (
            ("/v1/chat/completions", {"messages": CHAT["messages"]}),
            ("/v1/completions", {"prompt": ["a", "b"]}),
            ("/v1/responses", {"input": "Hi"}),
            ("/v1/embeddings", {"input": "x"}),
            ("/v1/rerank", {"query": "x", "documents": ["y"]}),
        ):
            answer = await client.post(path, json={**fields, **more}, headers=keys.headers("key"))
            assert answer.status_code == 200, answer.text
        if asked is None:
            for path, more in (
                ("/v1/messages", {"messages": CHAT["messages"], "max_tokens": 5}),
                ("/v1/responses/compact", {"input": "x"}),
                ("/api/chat", {"messages": CHAT["messages"]}),
            ):
                assert (await client.post(path, json={"model": MODEL.name, **more}, headers=keys.headers("key"))).status_code == 200
    generating = [request.options.priority for request in frontend.requests]
    assert generating == [given] * (4 if asked is not None else 7)
    assert [request.priority for request in frontend.pooling_requests] == [given] * 2


async def test_models_of_a_key(keys: KeyStore) -> None:
    keys.add("this", models=[MODEL.name, "another/model"])
    keys.add("other", models=["another/model"])
    async with gateway_client(api_keys_file=keys.path) as client:
        listed = {name: (await client.get("/v1/models", headers=keys.headers(name))).json()["data"] for name in ("this", "other")}
        anthropic = await client.get("/v1/models", headers={**keys.headers("other"), "anthropic-version": "2023-06-01"})
        # The default is the only model that is served, so a key of other models must not use it.
        unnamed = {
            name: await client.post("/tokenize", json={"prompt": "x"}, headers=keys.headers(name)) for name in ("this", "other")
        }
        unknown = await client.post("/v1/completions", json=COMPLETION | {"model": "no/model"}, headers=keys.headers("other"))
        known = await client.post("/v1/completions", json=COMPLETION, headers=keys.headers("other"))
    assert [model["id"] for model in listed["this"]] == [MODEL.name]
    assert listed["other"] == anthropic.json()["data"] == []
    assert (unnamed["this"].status_code, unnamed["other"].status_code) == (200, 403)
    assert unknown.status_code == known.status_code == 403, "the answer tells which models there are"
    assert unknown.json()["error"]["message"].replace("no/model", MODEL.name) == known.json()["error"]["message"]


async def turn(connection: websockets.ClientConnection, **fields: Any) -> dict[str, Any]:
    """The last event of a turn."""
    await connection.send(orjson.dumps({"type": "response.create", "model": MODEL.name, "input": "Hi", **fields}).decode())
    while True:
        event: dict[str, Any] = orjson.loads(await connection.recv())
        if event["type"] in ("error", "response.completed", "response.failed"):
            return event


async def test_each_turn_on_a_websocket_is_a_request(keys: KeyStore) -> None:
    keys.add("key", requests_per_minute=3, tokens_per_minute=LIMIT, models=[MODEL.name], max_concurrent_requests=1, priority=5)
    frontend = FakeFrontend()
    async with gateway_server(frontend, api_keys_file=keys.path) as (host, port):
        address = f"ws://{host}:{port}/v1/responses"
        async with websockets.connect(address, additional_headers=keys.headers("key")) as connection:
            assert (await turn(connection))["type"] == "response.completed"
            refused = await turn(connection, model="another/model")
            assert (refused["status"], refused["error"]["code"]) == (403, "model_not_found")
            over = await turn(connection)
            assert (over["status"], over["error"]["type"]) == (429, "requests")
    assert [request.options.priority for request in frontend.requests] == [5]
    assert isinstance(frontend.requests[0], generation_pb2.ChatRequest)


async def test_a_key_that_is_revoked_ends_on_a_websocket_too(keys: KeyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triptych_gateway.access.key_ring.RELOAD_INTERVAL_S", 0.01)
    keys.add("key")
    async with gateway_server(FakeFrontend(), api_keys_file=keys.path) as (host, port):
        address = f"ws://{host}:{port}/v1/responses"
        async with websockets.connect(address, additional_headers=keys.headers("key")) as connection:
            assert (await turn(connection))["type"] == "response.completed"
            keys.remove("key")
            async with asyncio.timeout(10):
                while (event := await turn(connection))["type"] != "error":
                    pass
                await connection.wait_closed()
    assert (event["status"], event["error"]["code"]) == (401, "invalid_api_key")
    assert (connection.close_code, connection.close_reason) == (1008, "the API key is no longer valid")


async def test_the_official_client_understands_the_refusals(keys: KeyStore) -> None:
    keys.add("key", requests_per_minute=1, models=["another/model"])
    async with gateway_server(FakeFrontend(), api_keys_file=keys.path) as (host, port):
        options: dict[str, Any] = {"base_url": f"http://{host}:{port}/v1", "max_retries": 0}
        async with openai.AsyncOpenAI(api_key="wrong", **options) as client:
            with pytest.raises(openai.AuthenticationError):
                await client.chat.completions.create(**CHAT)
        async with openai.AsyncOpenAI(api_key=keys.texts["key"], **options) as client:
            with pytest.raises(openai.PermissionDeniedError, match="does not have access to the model"):
                await client.chat.completions.create(**CHAT)
            with pytest.raises(openai.RateLimitError, match="Please try again in"):
                await client.chat.completions.create(**CHAT)
