"""A gateway with several frontends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
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
