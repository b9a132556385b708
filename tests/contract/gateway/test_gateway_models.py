"""A gateway with the model manager of `triptych serve`: models that sleep are woken, and operators administer them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from support.fakes.frontend import MODEL, FakeFrontend, says
from support.fakes.gateway import CHAT, client_of, gateway_app
from support.keys import KeyStore
from support.waiting import until
from triptych.errors import InternalError, InvalidRequestError, ServiceUnavailableError
from triptych.v1 import models_pb2, models_pb2_grpc
from triptych_cli.manager.manager import ModelManager
from triptych_cli.manager.model import Model, Usage
from triptych_cli.manager.servicer import ModelManagerServicer, serve_manager
from triptych_gateway.rpc.server import GrpcServer

KEY = {"authorization": "Bearer secret"}


@dataclass
class Services:
    """Services that are a fake frontend. Asleep, it is not ready."""

    frontend: FakeFrontend
    error: InternalError | None = None
    num_wakes: int = 0

    async def start(self) -> None:
        """Nothing to do."""

    async def stop(self) -> None:
        await self.frontend.health.set_ready(False)

    async def sleep(self) -> None:
        await self.frontend.health.set_ready(False)

    async def wake(self) -> None:
        self.num_wakes += 1
        await asyncio.sleep(0.02)
        if self.error is not None:
            raise self.error
        await self.frontend.health.set_ready(True)

    async def usage(self) -> Usage:
        return Usage(num_live_requests=1, resident_bytes=4096)


@dataclass
class Suite:
    """A gateway, its frontend, and the manager."""

    client: httpx.AsyncClient
    frontend: FakeFrontend
    manager: ModelManager
    services: Services
    grpc_port: int


@asynccontextmanager
async def suite(folder: Path, **settings: object) -> AsyncIterator[Suite]:
    frontend = FakeFrontend()
    frontend.script = says("Hello")
    services, manager = Services(frontend), ModelManager(1 << 30)
    await manager.start([Model(MODEL.name, "org/model", 1 << 20, 1 << 10, services)])

    async def load(source: str, name: str, num_engines: int) -> Model:
        raise InvalidRequestError(f"no {source} here", field="source")

    server = await serve_manager(ModelManagerServicer(manager, load), folder / "manager.sock")
    try:
        async with gateway_app(frontend, model_manager=folder / "manager.sock", **settings) as app:
            rpc = GrpcServer(app.state.gateway, None)
            port = rpc.listen()
            await rpc.start()
            try:
                async with client_of(app) as client:
                    await until(lambda: bool(app.state.gateway.pool.ready))
                    yield Suite(client, frontend, manager, services, port)
            finally:
                await rpc.stop(0)
    finally:
        await manager.close()
        await server.stop(0)


async def test_a_request_for_a_sleeping_model_wakes_it(tmp_path: Path) -> None:
    async with suite(tmp_path, grpc_port=0) as ours:
        await ours.manager.sleep(MODEL.name)
        await until_unready(ours)
        answers = await asyncio.gather(*(ours.client.post("/v1/chat/completions", json=CHAT) for _ in range(8)))
        assert {answer.status_code for answer in answers} == {200}
        assert ours.services.num_wakes == 1
        # Unary calls, too.
        await ours.manager.sleep(MODEL.name)
        await until_unready(ours)
        assert (await ours.client.post("/v1/embeddings", json={"model": MODEL.name, "input": "x"})).status_code == 200
        assert ours.services.num_wakes == 2


async def test_a_call_that_was_sent_away_by_one_about_to_sleep_waits_for_it(tmp_path: Path) -> None:
    async with suite(tmp_path, grpc_port=0) as ours:
        play, refusals = ours.frontend.ChatStream, 0

        async def refuse_once(request: Any, context: Any) -> AsyncIterator[Any]:
            nonlocal refusals
            refusals += 1
            if refusals == 1:
                # A frontend says that it goes away before it refuses anything.
                await ours.manager.sleep(MODEL.name)
                await until_unready(ours)
                raise ServiceUnavailableError("the frontend is draining")
            async for response in play(request, context):
                yield response

        ours.frontend.ChatStream = refuse_once  # type: ignore[method-assign]
        answer = await ours.client.post("/v1/chat/completions", json=CHAT)
        assert answer.status_code == 200, answer.text
        assert (refusals, ours.services.num_wakes) == (2, 1)


async def test_why_a_model_cannot_be_woken_is_told_to_operators_alone(tmp_path: Path) -> None:
    async with suite(tmp_path, grpc_port=0, api_key="secret") as ours:
        ours.client.headers.update(KEY)
        await ours.manager.sleep(MODEL.name)
        await until_unready(ours)
        ours.services.error = InternalError("the weights are gone")
        answer = await ours.client.post("/v1/chat/completions", json=CHAT)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        assert answer.json()["error"]["message"] == "the model cannot be woken now; try again later"
        told = await ours.client.post("/admin/models/wake", json={"name": MODEL.name})
        assert (told.status_code, told.json()["error"]["message"]) == (500, "the weights are gone")
        assert (await ours.client.get("/admin/models")).json()["models"][0]["error"] == "the weights are gone"


@pytest.mark.usefixtures("short_grace")
async def test_a_model_of_other_frontends_is_not_the_managers(tmp_path: Path) -> None:
    async with suite(tmp_path, grpc_port=0) as ours:
        await ours.manager.unload(MODEL.name)
        await until_unready(ours)
        # The frontend itself answers, or refuses with the reason.
        assert (await ours.client.post("/v1/chat/completions", json=CHAT)).status_code == 200
        assert ours.services.num_wakes == 0


async def test_operators_change_models(tmp_path: Path) -> None:
    async with suite(tmp_path, grpc_port=0, api_key="secret") as ours:
        assert (await ours.client.get("/admin/models")).status_code == 401
        ours.client.headers.update(KEY)
        listed = (await ours.client.get("/admin/models")).json()
        assert listed == {
            "models": [
                {
                    "name": MODEL.name, "source": "org/model", "state": "awake", "pinned": False, "memory_bytes": 1 << 20,
                    "resident_bytes": 4096, "num_live_requests": 1, "idle_s": 0.0, "error": "",
                }
            ],
            "memory_bytes": 1 << 30,
        }  # fmt: skip
        for what, shown in (("sleep", "asleep"), ("wake", "awake"), ("pin", True), ("unpin", False)):
            answer = (await ours.client.post(f"/admin/models/{what}", json={"name": MODEL.name})).raise_for_status().json()
            assert answer["state" if isinstance(shown, str) else "pinned"] == shown
        refused = await ours.client.post("/admin/models/load", json={"source": "org/other"})
        assert (refused.status_code, refused.json()["error"]["message"]) == (400, "no org/other here")
        unknown = await ours.client.post("/admin/models/sleep", json={"name": "nobody"})
        assert unknown.status_code == 404
        misspelt = await ours.client.post("/admin/models/sleep", json={"model": MODEL.name})
        assert misspelt.status_code == 400
        assert (await ours.client.post("/admin/models/unload", json={"name": MODEL.name})).status_code == 200
        assert (await ours.client.get("/admin/models")).json()["models"] == []


async def test_ollamas_clients_see_what_is_loaded_wake_it_and_let_it_sleep(tmp_path: Path) -> None:
    async with suite(tmp_path, grpc_port=0, api_key="secret") as ours:
        ours.client.headers.update(KEY)

        async def loaded() -> list[tuple[str, int]]:
            return [(one["name"], one["size"]) for one in (await ours.client.get("/api/ps")).json()["models"]]

        asked = {"model": f"{MODEL.name}:latest"}
        assert await loaded() == [(f"{MODEL.name}:latest", 4096)]
        slept = await ours.client.post("/api/generate", json=asked | {"prompt": "", "keep_alive": 0})
        assert (slept.status_code, slept.json()["done_reason"]) == (200, "unload")
        await until_unready(ours)
        assert await loaded() == []
        assert len((await ours.client.get("/api/tags")).json()["models"]) == 1
        woken = (await ours.client.post("/api/generate", json=asked)).json()
        assert (woken["done_reason"], ours.services.num_wakes) == ("load", 1)
        # The fake takes 20 ms to wake.
        assert 20_000_000 <= woken["load_duration"] <= woken["total_duration"]
        assert len(await loaded()) == 1
        await ours.manager.sleep(MODEL.name)
        await until_unready(ours)
        answer = (await ours.client.post("/api/chat", json=CHAT | asked | {"stream": False})).json()
        assert (answer["message"]["content"], ours.services.num_wakes) == ("Hello", 2)
        assert answer["total_duration"] >= 20_000_000


async def test_without_keys_nobody_lets_a_model_sleep_by_ollamas_api(tmp_path: Path) -> None:
    async with suite(tmp_path, grpc_port=0) as ours:
        refused = await ours.client.post("/api/chat", json={"model": MODEL.name, "messages": [], "keep_alive": 0})
        assert refused.status_code == 403
        assert "operator's key" in refused.json()["error"]
        assert ours.manager.is_awake(MODEL.name)


async def test_operators_change_models_over_grpc(tmp_path: Path) -> None:
    async with (
        suite(tmp_path, grpc_port=0, api_key="secret") as ours,
        grpc.aio.insecure_channel(f"127.0.0.1:{ours.grpc_port}") as channel,
    ):
        stub, metadata = models_pb2_grpc.ModelManagerServiceStub(channel), tuple(KEY.items())
        slept = await stub.SleepModel(models_pb2.SleepModelRequest(name=MODEL.name), metadata=metadata)
        assert slept.model.state == models_pb2.MODEL_STATE_ASLEEP
        woken = await stub.WakeModel(models_pb2.WakeModelRequest(name=MODEL.name), metadata=metadata)
        assert (woken.model.state, woken.was_asleep) == (models_pb2.MODEL_STATE_AWAKE, True)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.SleepModel(models_pb2.SleepModelRequest(name=MODEL.name))
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.PinModel(models_pb2.PinModelRequest(name="nobody"), metadata=metadata)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_without_keys_models_are_listed_and_not_changed(tmp_path: Path) -> None:
    async with suite(tmp_path, grpc_port=0) as ours:
        assert (await ours.client.get("/admin/models")).status_code == 200
        refused = await ours.client.post("/admin/models/sleep", json={"name": MODEL.name})
        assert refused.status_code == 403
        assert "operator's key" in refused.json()["error"]["message"]
        assert ours.manager.is_awake(MODEL.name)


async def test_a_key_that_is_no_operators_is_refused(tmp_path: Path) -> None:
    keys = KeyStore(tmp_path / "keys.json")
    text = keys.add("user")
    async with suite(tmp_path, grpc_port=0, api_keys_file=keys.path) as ours:
        answer = await ours.client.get("/admin/models", headers={"authorization": f"Bearer {text}"})
        assert answer.status_code == 403


async def test_a_gateway_without_a_manager_says_so() -> None:
    async with gateway_app(FakeFrontend(), api_key="secret") as app, client_of(app) as client:
        answer = await client.get("/admin/models", headers=KEY)
        assert answer.status_code == 404
        assert "`triptych serve`" in answer.json()["error"]["message"]


async def until_unready(ours: Suite) -> None:
    """Wait until the gateway has seen that its frontend takes nothing."""

    async def is_unready() -> bool:
        return (await ours.client.get("/ready")).status_code == 503

    async with asyncio.timeout(5):
        while not await is_unready():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
