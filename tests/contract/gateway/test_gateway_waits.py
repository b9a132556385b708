"""Requests wait for frontends that start, or come back."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from support.fakes.frontend import FakeFrontend, running
from support.fakes.gateway import CHAT, client_of
from support.waiting import until
from triptych.v1 import common_pb2
from triptych_cli.stack.ports import free_port
from triptych_gateway.app import create_app
from triptych_gateway.settings import GatewaySettings


async def test_a_request_waits_for_a_model_that_is_scaled_from_zero(tmp_path: Path) -> None:
    addresses, started = tmp_path / "frontends", FakeFrontend()
    async with running(FakeFrontend()) as first, running(started) as second:
        addresses.write_text(first)
        started.model = common_pb2.ModelInfo(name="big", fingerprint="b" * 16, max_model_len=1024)
        started.instance = common_pb2.Instance(id="big", state=common_pb2.SERVER_STATE_SERVING)
        settings = GatewaySettings(frontend_addresses=(f"file:{addresses}",), expected_models=("big",), model_wait_s=60)
        app = create_app(settings)
        async with app.router.lifespan_context(app), client_of(app) as client:
            await until(lambda: len(app.state.gateway.pool.ready) == 1)
            waiting = asyncio.create_task(client.post("/v1/chat/completions", json=CHAT | {"model": "big"}))
            other = await client.post("/v1/chat/completions", json=CHAT)
            assert other.status_code == 200
            assert not waiting.done()
            new = tmp_path / "new"
            new.write_text(f"{first}\n{second}\n")
            new.replace(addresses)
            answer = await waiting
    assert (answer.status_code, answer.json()["model"]) == (200, "big")


@pytest.mark.usefixtures("short_grace")
async def test_a_model_that_is_unloaded_is_not_waited_for(tmp_path: Path) -> None:
    addresses, leaving = tmp_path / "frontends", FakeFrontend()
    leaving.model = common_pb2.ModelInfo(name="big", fingerprint="b" * 16, max_model_len=1024)
    leaving.instance = common_pb2.Instance(id="big", state=common_pb2.SERVER_STATE_SERVING)
    async with running(FakeFrontend()) as first, AsyncExitStack() as life:
        second = await life.enter_async_context(running(leaving))
        addresses.write_text(f"{first}\n{second}\n")
        app = create_app(GatewaySettings(frontend_addresses=(f"file:{addresses}",), model_wait_s=60))
        async with app.router.lifespan_context(app), client_of(app) as client, asyncio.timeout(20):
            await until(lambda: len(app.state.gateway.pool.ready) == 2)
            await life.aclose()  # the manager ends it before the file loses its name
            await until(lambda: len(app.state.gateway.pool.ready) == 1)
            asked = [
                asyncio.create_task(client.post("/v1/chat/completions", json=CHAT | {"model": "big"})),
                asyncio.create_task(client.post("/tokenize", json={"model": "big", "prompt": "Hi"})),
            ]
            await until(lambda: app.state.gateway.metrics.waiting_for_model == {"big": 2})
            new = tmp_path / "new"
            new.write_text(first)
            new.replace(addresses)
            answers = await asyncio.gather(*asked)
    assert [answer.status_code for answer in answers] == [404, 404]
    assert "'big'" in answers[0].json()["error"]["message"]


@pytest.mark.parametrize("is_listed_later", [False, True])
@pytest.mark.parametrize("wait_s", [0, 60])
async def test_a_frontend_that_comes_back_under_another_address_is_waited_for(
    tmp_path: Path, wait_s: float, is_listed_later: bool
) -> None:
    addresses, before, after = tmp_path / "frontends", FakeFrontend(), FakeFrontend()
    for frontend, name in ((before, "before"), (after, "after")):
        frontend.model = common_pb2.ModelInfo(name="big", fingerprint="b" * 16, max_model_len=1024)
        frontend.instance = common_pb2.Instance(id=name, state=common_pb2.SERVER_STATE_SERVING)
    async with running(FakeFrontend()) as other, running(after) as second, AsyncExitStack() as life:
        first = await life.enter_async_context(running(before))

        def name(*listed: str) -> None:
            new = tmp_path / "new"
            new.write_text("\n".join((other, *listed)))
            new.replace(addresses)

        name(first)
        app = create_app(GatewaySettings(frontend_addresses=(f"file:{addresses}",), model_wait_s=wait_s))
        async with app.router.lifespan_context(app), client_of(app) as client, asyncio.timeout(20):
            await until(lambda: len(app.state.gateway.pool.ready) == 2)
            await life.aclose()
            await until(lambda: len(app.state.gateway.pool.ready) == 1)
            asked = asyncio.create_task(client.post("/v1/chat/completions", json=CHAT | {"model": "big"}))
            await until(lambda: app.state.gateway.metrics.waiting_for_model == {"big": 1})
            if is_listed_later:
                name()
                await until(lambda: len(app.state.gateway.pool.connections) == 1)
            name(second)
            answer = await asked
    assert (answer.status_code, answer.json().get("model")) == (200, "big")


async def test_a_request_waits_for_a_frontend_that_was_there_a_moment_ago() -> None:
    """In a rolling restart the last frontend may leave before the gateway has found the one that was restarted first."""
    port = free_port("127.0.0.1")
    app = create_app(GatewaySettings(frontend_addresses=(f"127.0.0.1:{port}",)))
    async with app.router.lifespan_context(app), client_of(app) as client:
        async with running(FakeFrontend(), port=port):
            await until(lambda: bool(app.state.gateway.pool.ready))
        await until(lambda: not app.state.gateway.pool.ready)
        waiting = asyncio.create_task(client.post("/v1/chat/completions", json=CHAT))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        async with running(FakeFrontend(), port=port):
            assert (await waiting).status_code == 200
        refused = await client.post("/v1/chat/completions", json=CHAT)
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) >= 1
