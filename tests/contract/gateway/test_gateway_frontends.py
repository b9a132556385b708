"""A gateway with several frontends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest
from support.fakes.frontend import FakeFrontend, running, says
from support.fakes.gateway import CHAT, client_of
from support.waiting import until
from triptych.v1 import common_pb2
from triptych_gateway.app import create_app
from triptych_gateway.settings import GatewaySettings

PIXEL = "data:image/png;base64,AAAA"


@asynccontextmanager
async def two_frontends() -> AsyncIterator[tuple[httpx.AsyncClient, list[FakeFrontend], list[AsyncExitStack]]]:
    """A client of a gateway before two frontends, and what stops each of them."""
    frontends = [FakeFrontend(), FakeFrontend()]
    for number, frontend in enumerate(frontends):
        frontend.instance = common_pb2.Instance(id=f"frontend {number}", state=common_pb2.SERVER_STATE_SERVING)
    async with AsyncExitStack() as stack:
        lives = [await stack.enter_async_context(AsyncExitStack()) for _ in frontends]
        addresses = [await life.enter_async_context(running(one)) for life, one in zip(lives, frontends, strict=True)]
        app = create_app(GatewaySettings(frontend_addresses=tuple(addresses)))
        await stack.enter_async_context(app.router.lifespan_context(app))
        await until(lambda: len(app.state.gateway.pool.ready) == 2)
        yield await stack.enter_async_context(client_of(app)), frontends, lives


async def test_requests_go_to_the_frontend_with_the_fewest_calls() -> None:
    async with two_frontends() as (client, frontends, _):
        gate = asyncio.Semaphore(0)
        for frontend in frontends:
            frontend.script = says("a", "b", gate=gate)
        answers = [asyncio.create_task(client.post("/v1/chat/completions", json=CHAT)) for _ in range(6)]
        await until(lambda: sum(frontend.num_live for frontend in frontends) == 6)
        assert [frontend.num_live for frontend in frontends] == [3, 3]
        for _ in range(100):
            gate.release()
        assert {answer.status_code for answer in await asyncio.gather(*answers)} == {200}


async def test_requests_that_nobody_answered_go_to_the_other_frontend_with_their_files() -> None:
    async with two_frontends() as (client, frontends, lives):
        gates = [asyncio.Semaphore(0), asyncio.Semaphore(0)]
        for frontend, gate in zip(frontends, gates, strict=True):
            frontend.script = says("a", "b", gate=gate)
        picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "QUJD" * 200_000}}
        message = {"role": "user", "content": [picture, {"type": "text", "text": "?"}]}
        body = CHAT | {"messages": [message]}
        answers = [asyncio.create_task(client.post("/v1/chat/completions", json=body)) for _ in range(4)]
        await until(lambda: [frontend.num_live for frontend in frontends] == [2, 2])
        await lives[0].aclose()
        await until(lambda: frontends[1].num_live == 4)
        for _ in range(100):
            gates[1].release()
        assert [answer.status_code for answer in await asyncio.gather(*answers)] == [200] * 4
        assert set(frontends[1].uploads.values()) == {b"ABC" * 200_000}
        assert len(frontends[1].uploads) == 4


async def test_a_stream_that_has_begun_ends_with_an_error_event_and_nobody_is_refused() -> None:
    async with two_frontends() as (client, frontends, lives):
        for frontend in frontends:
            frontend.script = says("a", "b", gate=asyncio.Semaphore(1))
        stream = asyncio.create_task(client.post("/v1/chat/completions", json=CHAT | {"stream": True}))
        await until(lambda: sum(frontend.num_responses for frontend in frontends) == 1)
        begun = 0 if frontends[0].num_responses else 1
        await lives[begun].aclose()
        ended = await stream
        frontends[1 - begun].script = says("Hello")
        after = await client.post("/v1/chat/completions", json=CHAT)
    assert '"code":"service_unavailable"' in ended.text
    assert after.status_code == 200


async def test_requests_that_name_media_go_where_the_name_is_known() -> None:
    async with two_frontends() as (client, frontends, _):
        for name in ("cat", "dog", "owl", "fox", "elk"):
            part = {"type": "image_url", "image_url": {"url": PIXEL}, "uuid": name}
            body = CHAT | {"messages": [{"role": "user", "content": [part]}]}
            before = [len(frontend.requests) for frontend in frontends]
            for _ in range(4):
                assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
            after = [len(frontend.requests) for frontend in frontends]
            assert sorted(new - old for new, old in zip(after, before, strict=True)) == [0, 4]


async def test_a_file_names_the_frontends_and_may_change(tmp_path: Path) -> None:
    path, first, second = tmp_path / "frontends", FakeFrontend(), FakeFrontend()
    async with running(first) as first_address, running(second) as second_address:
        path.write_text(f"{first_address}  # the first\n")
        app = create_app(GatewaySettings(frontend_addresses=(f"file:{path}",)))
        async with app.router.lifespan_context(app), client_of(app) as client:
            await until(lambda: len(app.state.gateway.pool.ready) == 1)
            assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 200
            path.write_text(f"{second_address}\n")
            await until(lambda: [one.address for one in app.state.gateway.pool.ready] == [second_address])
            assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 200
    assert (len(first.requests), len(second.requests)) == (1, 1)


@asynccontextmanager
async def two_models(
    **settings: object,
) -> AsyncIterator[tuple[httpx.AsyncClient, dict[str, FakeFrontend], dict[str, AsyncExitStack]]]:
    """A client of a gateway before a frontend of model a and one of model b, and what stops each of them."""
    frontends = {name: FakeFrontend() for name in ("a", "b")}
    for name, frontend in frontends.items():
        frontend.instance = common_pb2.Instance(id=f"frontend of {name}", state=common_pb2.SERVER_STATE_SERVING)
        frontend.model = common_pb2.ModelInfo(name=name, fingerprint=name * 16, max_model_len=1024)
    async with AsyncExitStack() as stack:
        lives = {name: await stack.enter_async_context(AsyncExitStack()) for name in frontends}
        addresses = [await lives[name].enter_async_context(running(one)) for name, one in frontends.items()]
        app = create_app(GatewaySettings(frontend_addresses=tuple(addresses), **settings))
        await stack.enter_async_context(app.router.lifespan_context(app))
        await until(lambda: len(app.state.gateway.pool.ready) == 2)
        yield await stack.enter_async_context(client_of(app)), frontends, lives


async def test_a_request_goes_to_a_frontend_of_its_model() -> None:
    async with two_models() as (client, frontends, _):
        for name, frontend in frontends.items():
            answers = [await client.post("/v1/chat/completions", json=CHAT | {"model": name}) for _ in range(3)]
            assert {answer.status_code for answer in answers} == {200}, answers[0].text
            assert {answer.json()["model"] for answer in answers} == {name}
            assert [request.model for request in frontend.requests] == [name] * 3
            assert (await client.post("/tokenize", json={"model": name, "prompt": "Hi"})).status_code == 200
        listed = (await client.get("/v1/models")).json()["data"]
        assert sorted(model["id"] for model in listed) == ["a", "b"]
        assert (await client.get("/v1/models/b")).json()["id"] == "b"


async def test_of_several_models_one_must_be_named() -> None:
    async with two_models() as (client, _, _):
        unnamed = await client.post("/tokenize", json={"prompt": "Hi"})
        unknown = await client.post("/v1/chat/completions", json=CHAT | {"model": "c"})
        not_there = await client.get("/v1/models/c")
    assert (unnamed.status_code, unnamed.json()["error"]["param"]) == (400, "model")
    assert "a, b" in unnamed.json()["error"]["message"]
    assert unknown.status_code == not_there.status_code == 404
    assert "'c'" in unknown.json()["error"]["message"]
    assert "a, b" in unknown.json()["error"]["message"]


@pytest.mark.usefixtures("short_grace")
async def test_a_model_whose_frontends_are_away_is_unavailable_and_no_other_answers_for_it() -> None:
    async with two_models() as (client, frontends, lives):
        await lives["a"].aclose()
        away = await client.post("/v1/chat/completions", json=CHAT | {"model": "a"})
        other = await client.post("/v1/chat/completions", json=CHAT | {"model": "b"})
        listed = (await client.get("/v1/models")).json()["data"]
    assert (away.status_code, other.status_code) == (503, 200)
    assert int(away.headers["retry-after"]) >= 1
    assert [request.model for request in frontends["b"].requests] == ["b"]
    assert [model["id"] for model in listed] == ["b"]


async def test_what_needs_no_engine_does_not_wait_for_one() -> None:
    frontend = FakeFrontend()
    async with running(frontend, ready=False) as address:
        app = create_app(GatewaySettings(frontend_addresses=(address,), expected_models=("other",), model_wait_s=60))
        async with app.router.lifespan_context(app), client_of(app) as client:
            await until(lambda: any(one.takes_calls and one.models for one in app.state.gateway.pool.connections))
            async with asyncio.timeout(20):
                listed = (await client.get("/v1/models")).json()["data"]
                tokens = await client.post("/tokenize", json={"model": CHAT["model"], "prompt": "Hi"})
                described = await client.get(f"/v1/models/{CHAT['model']}")
            assert not app.state.gateway.metrics.waiting_for_model
    assert [model["id"] for model in listed] == [CHAT["model"]]
    assert (tokens.status_code, described.status_code) == (200, 200)


async def test_without_any_frontend_the_list_of_models_is_unavailable() -> None:
    app = create_app(GatewaySettings(frontend_addresses=("127.0.0.1:1",), expected_models=("a", "b"), model_wait_s=60))
    async with app.router.lifespan_context(app), client_of(app) as client, asyncio.timeout(20):
        assert (await client.get("/v1/models")).status_code == 503


async def test_names_that_clients_invent_are_no_series_of_a_metric() -> None:
    app = create_app(GatewaySettings(frontend_addresses=("127.0.0.1:1",), model_wait_s=60))
    async with app.router.lifespan_context(app), client_of(app) as client:
        waiting = app.state.gateway.metrics.waiting_for_model
        asked = [asyncio.create_task(client.post("/tokenize", json={"model": f"evil{n}", "prompt": "Hi"})) for n in range(3)]
        await until(lambda: sum(waiting.values()) == 3)
        assert dict(waiting) == {"": 3}
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        assert not waiting


async def test_requests_that_wait_for_a_model_have_a_limit_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triptych_gateway.state.MAX_WAITING_BYTES", 3 * (64 << 10) + 1000)
    app = create_app(GatewaySettings(frontend_addresses=("127.0.0.1:1",), expected_models=("big",), model_wait_s=60))
    async with app.router.lifespan_context(app), client_of(app) as client:
        waiting = app.state.gateway.metrics.waiting_for_model

        def ask(text: str = "Hi", **fields: object) -> asyncio.Task[httpx.Response]:
            messages = [{"role": "user", "content": text}]
            return asyncio.create_task(client.post("/v1/chat/completions", json={"model": "big", "messages": messages, **fields}))

        asked = [ask(), ask(stream=True)]
        await until(lambda: waiting == {"big": 2})
        large = await ask("x" * 2000)
        asked.append(asyncio.create_task(client.post("/tokenize", json={"model": "big", "prompt": "Hi"})))
        await until(lambda: waiting == {"big": 3})
        refused = [await ask(), await ask(stream=True), await client.post("/v1/embeddings", json={"model": "big", "input": "x"})]
        for answer in (large, *refused):
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "10")
            assert answer.json()["error"]["type"] == "service_unavailable_error"
            assert "too many requests wait" in answer.json()["error"]["message"]
        # One that leaves makes room.
        asked.pop().cancel()
        await until(lambda: waiting == {"big": 2})
        asked.append(ask())
        await until(lambda: waiting == {"big": 3})
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        await until(lambda: not waiting)
