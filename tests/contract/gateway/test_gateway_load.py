"""GET /load: what frontends say of their engines and encoders, each service once."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

from support.fakes.frontend import MODEL, FakeFrontend, running
from support.fakes.gateway import client_of, gateway_client, until_connected
from triptych.v1 import common_pb2, encoder_pb2, engine_pb2, generation_pb2
from triptych_gateway.app import create_app
from triptych_gateway.settings import GatewaySettings

SERVING, AWAY = common_pb2.SERVER_STATE_SERVING, common_pb2.SERVER_STATE_UNAVAILABLE


def instance(id: str, state: common_pb2.ServerState = SERVING) -> common_pb2.Instance:  # noqa: A002 - as in the contract
    return common_pb2.Instance(id=id, state=state, address="10.0.0.1:50053")


def load_of(name: str, *engines: generation_pb2.EngineLoad, **fields: object) -> generation_pb2.GetLoadResponse:
    return generation_pb2.GetLoadResponse(instance=instance(name), num_live_requests=2, engines=engines, **fields)


ENGINE = generation_pb2.EngineLoad(
    instance=instance("e1"), load=engine_pb2.Load(num_running=3, num_waiting=5, num_blocks=100, num_free_blocks=25, block_size=16)
)
LOST = generation_pb2.EngineLoad(instance=instance("", AWAY))


async def test_numbers_of_engines_and_encoders() -> None:
    stats = encoder_pb2.GetStatsResponse(num_entries=4, used_bytes=5, capacity_bytes=6, queue_length=1, num_local_hits=7)
    silent = generation_pb2.EncoderLoad(instance=instance("c2"))
    frontend = FakeFrontend()
    frontend.load = load_of("f1", ENGINE, LOST, encoders=[generation_pb2.EncoderLoad(instance=instance("c1"), stats=stats), silent])
    async with gateway_client(frontend) as client:
        load = (await client.get("/load")).json()
    assert load["frontends"] == [{"id": "f1", "state": "serving", "num_requests": 2}]
    engine, lost = load["engines"]
    assert (engine["id"], engine["state"], engine["num_running"], engine["num_waiting"]) == ("e1", "serving", 3, 5)
    assert (engine["num_blocks"], engine["num_free_blocks"], engine["block_size"], engine["num_preemptions"]) == (100, 25, 16, 0)
    assert (lost["id"], lost["state"], lost["num_running"]) == ("", "unavailable", None)
    first, second = load["encoders"]
    assert (first["num_entries"], first["used_bytes"], first["capacity_bytes"], first["queue_length"]) == (4, 5, 6, 1)
    assert (first["num_local_hits"], first["num_misses"]) == (7, 0)
    assert (second["id"], second["capacity_bytes"]) == ("c2", None)
    assert "10.0.0.1" not in str(load)


async def load_behind(frontends: list[FakeFrontend]) -> dict[str, Any]:
    """What a gateway in front of these tells."""
    async with AsyncExitStack() as stack:
        addresses = tuple([await stack.enter_async_context(running(frontend)) for frontend in frontends])
        app = create_app(GatewaySettings(frontend_addresses=addresses))
        await stack.enter_async_context(app.router.lifespan_context(app))
        await until_connected(app)
        client = await stack.enter_async_context(client_of(app))
        return (await client.get("/load")).json()


async def test_a_service_of_several_frontends_is_listed_once() -> None:
    frontends = [FakeFrontend(), FakeFrontend()]
    frontends[0].load = load_of("f1", ENGINE, LOST)
    frontends[1].load = load_of("f2", ENGINE, LOST, LOST)
    load = await load_behind(frontends)
    assert [frontend["id"] for frontend in load["frontends"]] == ["f1", "f2"]
    assert [engine["id"] for engine in load["engines"]] == ["e1", "", ""]


async def test_of_a_service_that_one_frontend_cannot_ask_the_numbers_of_another_count() -> None:
    stats = encoder_pb2.GetStatsResponse(num_entries=4)
    away = generation_pb2.EngineLoad(instance=instance("e1", AWAY))
    frontends = [FakeFrontend(), FakeFrontend()]
    frontends[0].load = load_of("f1", away, encoders=[generation_pb2.EncoderLoad(instance=instance("c1"))])
    frontends[1].load = load_of("f2", ENGINE, encoders=[generation_pb2.EncoderLoad(instance=instance("c1"), stats=stats)])
    load = await load_behind(frontends)
    assert [(engine["id"], engine["state"], engine["num_running"]) for engine in load["engines"]] == [("e1", "serving", 3)]
    assert [(encoder["id"], encoder["num_entries"]) for encoder in load["encoders"]] == [("c1", 4)]


async def test_it_needs_the_key() -> None:
    async with gateway_client(api_key="secret") as client:
        assert (await client.get("/load")).status_code == 401
        assert (await client.get("/load", headers={"x-api-key": "secret"})).status_code == 200


async def test_without_a_frontend_it_is_unavailable() -> None:
    app = create_app(GatewaySettings(frontend_addresses=("127.0.0.1:1",)))
    async with app.router.lifespan_context(app), client_of(app) as client:
        response = await client.get("/load")
    assert response.status_code == 503
    assert response.json()["error"]["type"] == "service_unavailable_error"


async def test_models_say_what_requests_may_ask_for() -> None:
    frontend = FakeFrontend()
    frontend.model = common_pb2.ModelInfo()
    frontend.model.CopyFrom(MODEL)
    frontend.model.capabilities.MergeFrom(
        common_pb2.Capabilities(
            tasks=[common_pb2.TASK_GENERATE],
            modalities=[common_pb2.MODALITY_IMAGE],
            constraints=["regex"],
            tools=True,
            default_sampling=common_pb2.SamplingParams(temperature=0.7, top_k=20),
        )
    )
    async with gateway_client(frontend) as client:
        [model] = (await client.get("/v1/models")).json()["data"]
    assert model["triptych"] == {
        "tasks": ["generate"],
        "modalities": ["image"],
        "tools": True,
        "reasoning": False,
        "constraints": ["regex"],
        "default_sampling": {"temperature": 0.7, "top_k": 20},
    }
