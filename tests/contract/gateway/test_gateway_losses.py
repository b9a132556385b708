"""A frontend or a client that fails in the middle of something takes nobody else with it, and every request gets its answer."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any

import grpc
import pytest
from support.fakes.frontend import MODEL, FakeFrontend, running, says
from support.fakes.gateway import CHAT, client_of, gateway_client
from support.waiting import until
from triptych.errors import InternalError, ServiceUnavailableError
from triptych.v1 import common_pb2, generation_pb2
from triptych_common.cluster.pool import Pool
from triptych_common.cluster.resolver import Update
from triptych_gateway.app import create_app
from triptych_gateway.frontends.calls import FrontendCall, MediaFile
from triptych_gateway.frontends.client import FrontendClient
from triptych_gateway.frontends.connection import _MAX_UPLOADS, MAX_INLINE_FILE_BYTES, FrontendConnection
from triptych_gateway.frontends.models import ServedModels
from triptych_gateway.frontends.router import FrontendRouter
from triptych_gateway.settings import GatewaySettings

CONTEXT = common_pb2.CallContext()


class Named:
    """A resolver whose addresses the test sets."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = asyncio.Queue[tuple[str, ...]]()
        self.addresses.put_nowait(addresses)

    async def watch(self, update: Update) -> None:
        while True:
            update(await self.addresses.get())

    def resolve_now(self) -> None:
        pass


class SlowFrontend(FakeFrontend):
    """Takes for ever to take a file and to tell its models, until it is let."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.instance = common_pb2.Instance(id=f"frontend {number}", state=common_pb2.SERVER_STATE_SERVING)
        self.may_go_on = asyncio.Event()
        self.num_waiting = 0

    async def _wait(self) -> None:
        self.num_waiting += 1
        await self.may_go_on.wait()

    async def UploadMedia(self, request_iterator: Any, context: Any) -> generation_pb2.UploadMediaResponse:
        await self._wait()
        return await super().UploadMedia(request_iterator, context)

    async def ListModels(self, request: Any, context: Any) -> generation_pb2.ListModelsResponse:
        await self._wait()
        return await super().ListModels(request, context)


Slow = tuple[Pool[FrontendConnection], list[SlowFrontend], list[AsyncExitStack], Named]


@asynccontextmanager
async def slow_frontends(number: int) -> AsyncIterator[Slow]:
    """A pool of slow frontends, what stops each of them, and the resolver."""
    frontends = [SlowFrontend(index) for index in range(number)]
    async with AsyncExitStack() as stack:
        lives = [await stack.enter_async_context(AsyncExitStack()) for _ in frontends]
        addresses = [await life.enter_async_context(running(one)) for life, one in zip(lives, frontends, strict=True)]
        resolver = Named(*addresses)
        pool = Pool("frontend", resolver, FrontendConnection)
        task = asyncio.create_task(pool.run())
        await until(lambda: len(pool.ready) == number)
        try:
            yield pool, frontends, lives, resolver
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def with_file() -> FrontendCall:
    """A call whose file has to be uploaded."""
    chat = generation_pb2.ChatRequest(model=MODEL.name)
    message = chat.messages.add(role="user")
    item = message.content.add(media=common_pb2.MediaItem(modality=common_pb2.MODALITY_IMAGE)).media
    return FrontendCall(chat, "id", files=[MediaFile(item, bytes(MAX_INLINE_FILE_BYTES + 1))])


async def text_of(router: FrontendRouter, call: FrontendCall) -> str:
    text = ""
    async with aclosing(router.generate([call], CONTEXT)) as batches:
        async for batch in batches:
            text += "".join(delta.text for _, response in batch for delta in response.choices)
    return text


async def test_a_frontend_that_is_lost_during_an_upload_leaves_the_request_to_another_one() -> None:
    async with slow_frontends(2) as (pool, frontends, lives, _):
        router = FrontendRouter(pool, ServedModels(pool))
        answer = asyncio.create_task(text_of(router, with_file()))
        await until(lambda: any(one.num_waiting for one in frontends))
        first = 0 if frontends[0].num_waiting else 1
        frontends[1 - first].may_go_on.set()
        await lives[first].aclose()
        assert await asyncio.wait_for(answer, 5) == "Hello"


@pytest.mark.usefixtures("short_grace")
async def test_the_same_for_one_that_waits_for_its_turn_to_upload() -> None:
    async with slow_frontends(1) as (pool, (frontend,), (life,), _):
        router = FrontendRouter(pool, ServedModels(pool))
        answers = [asyncio.create_task(text_of(router, with_file())) for _ in range(6)]
        await until(lambda: frontend.num_waiting == _MAX_UPLOADS)
        await life.aclose()
        results = await asyncio.wait_for(asyncio.gather(*answers, return_exceptions=True), 5)
        assert [type(result) for result in results] == [ServiceUnavailableError] * 6


async def begun_with_a_file(pool: Pool[FrontendConnection], frontends: Sequence[Any]) -> tuple[asyncio.Task[str], int]:
    """A request with a file that one of two frontends works on without end, and which one that is."""
    for one in frontends:
        one.may_go_on.set()
        one.script = says("a", gate=asyncio.Semaphore(0))
    answer = asyncio.create_task(text_of(FrontendRouter(pool, ServedModels(pool)), with_file()))
    await until(lambda: any(one.num_live for one in frontends))
    return answer, 0 if frontends[0].num_live else 1


@pytest.mark.usefixtures("short_grace")
async def test_a_request_that_is_placed_again_ends_when_the_second_frontend_is_lost_too() -> None:
    async with slow_frontends(2) as (pool, frontends, lives, _):
        answer, first = await begun_with_a_file(pool, frontends)
        frontends[1 - first].may_go_on.clear()
        await lives[first].aclose()
        await until(lambda: frontends[1 - first].num_waiting == 1)
        await lives[1 - first].aclose()
        with pytest.raises(ServiceUnavailableError):
            await asyncio.wait_for(answer, 5)


async def test_an_unexpected_error_while_a_request_is_placed_again_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with slow_frontends(2) as (pool, frontends, lives, _):
        answer, first = await begun_with_a_file(pool, frontends)

        async def fail(*_: object, **__: object) -> str:
            raise ValueError("a mistake of ours")

        monkeypatch.setattr(FrontendConnection, "upload", fail)
        await lives[first].aclose()
        with pytest.raises(InternalError):
            await asyncio.wait_for(answer, 5)


async def test_a_question_in_flight_survives_that_its_frontend_is_named_no_more() -> None:
    async with slow_frontends(2) as (pool, frontends, _, resolver):
        client = FrontendClient(pool, FrontendRouter(pool, models := ServedModels(pool)), models)
        answer = asyncio.create_task(client.models("id"))
        await until(lambda: any(one.num_waiting for one in frontends))
        first = 0 if frontends[0].num_waiting else 1
        frontends[1 - first].may_go_on.set()
        resolver.addresses.put_nowait((pool.connections[1 - first].address,))
        assert [model.name for model in await asyncio.wait_for(answer, 5)] == [MODEL.name]


class ForgetfulFrontend(FakeFrontend):
    """Cannot describe itself just when it becomes ready."""

    num_failures = 0

    async def Describe(self, request: Any, context: grpc.aio.ServicerContext) -> Any:
        if self.num_failures:
            self.num_failures -= 1
            raise ServiceUnavailableError("not now")
        return await super().Describe(request, context)


async def test_a_frontend_that_becomes_ready_is_seen_though_it_could_not_describe_itself_at_first() -> None:
    frontend = ForgetfulFrontend()
    async with running(frontend, ready=False) as address:
        pool = Pool("frontend", Named(address), FrontendConnection)
        task = asyncio.create_task(pool.run())
        try:
            await until(lambda: bool(pool.connections) and pool.connections[0].why_away == "the frontend is not ready")
            frontend.num_failures = 1
            await frontend.health.set_ready(True)
            await until(lambda: len(pool.ready) == 1)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("depth", [31, 40, 250])
async def test_options_that_are_nested_deeply_disturb_no_other_request(depth: int) -> None:
    frontend, gate = FakeFrontend(), asyncio.Semaphore(0)
    frontend.script = says("a", "b", gate=gate)
    options: Any = 1
    for _ in range(depth):
        options = {"a": options}
    async with gateway_client(frontend) as client:
        other = asyncio.create_task(client.post("/v1/chat/completions", json=CHAT))
        await frontend.arrivals.get()
        deep = await client.post("/v1/chat/completions", json=CHAT | {"chat_template_kwargs": options})
        for _ in range(10):
            gate.release()
        assert (await other).status_code == 200
    assert (deep.status_code, deep.json()["error"]["param"]) == (400, "chat_template_kwargs")


async def test_files_are_let_go_once_a_frontend_has_answered() -> None:
    frontend, gate = FakeFrontend(), asyncio.Semaphore(1)
    frontend.script = says("a", "b", gate=gate)
    async with running(frontend) as address:
        app = create_app(GatewaySettings(frontend_addresses=(address,)))
        async with app.router.lifespan_context(app):
            await until(lambda: len(app.state.gateway.pool.ready) == 1)
            url = "data:image/png;base64," + "QUJD" * 200_000
            picture = {"type": "image_url", "image_url": {"url": url}}
            sound = {"type": "input_audio", "input_audio": {"data": "QUJD" * 200_000, "format": "wav"}}
            body = CHAT | {"stream": True, "messages": [{"role": "user", "content": [picture, sound]}]}
            async with client_of(app) as client:
                stream = asyncio.create_task(client.post("/v1/chat/completions", json=body))
                await until(lambda: frontend.num_responses == 1)
                await until(lambda: app.state.gateway.bodies.used_bytes == 0)
                gc.collect()
                held = [one for one in gc.get_objects() if type(one) is MediaFile and len(one.content) == 600_000]
                for _ in range(5):
                    gate.release()
                assert (await stream).status_code == 200
    assert held == []


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.INTERNAL])
async def test_an_error_of_the_transport_is_a_frontend_that_went_away(code: grpc.StatusCode) -> None:
    """A write on a connection that was just lost ends with INTERNAL, without the details that a frontend's own errors have."""

    async def fail() -> None:
        raise grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), "Internal error from Core")

    async with slow_frontends(1) as (pool, *_):
        with pytest.raises(ServiceUnavailableError):
            await pool.connections[0].answered(fail)
