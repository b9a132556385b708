"""`triptych serve` with three models and memory for two: chat, chat and embeddings from one gateway, by turns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import httpx
import psutil
import pytest
from support.stack import Serving, serving
from triptych.v1 import models_pb2, models_pb2_grpc
from triptych_cli.manager.memory import Needs
from triptych_cli.stack.options import ServeOptions
from triptych_common.model.store import EMBEDDING_MODEL, has_towers, resolve_model
from triptych_common.settings import DEFAULT_MODEL

pytestmark = [pytest.mark.model, pytest.mark.long]
KEY = {"authorization": "Bearer secret"}
MODELS = {DEFAULT_MODEL: DEFAULT_MODEL, "second": DEFAULT_MODEL, "embed": EMBEDDING_MODEL}
GIVEN = {"encoder": ["--cache-memory", "64M"]}
#: What waking the default model takes at most where nothing else computes, in seconds. Tests run beside others.
WAKE_S, PATIENCE = 3.0, 5


def memory_for_two() -> int:
    """Bytes that suffice for any two of the models, and not for all."""
    paths = {model: resolve_model(model) for model in MODELS.values()}
    needs = [Needs.of(paths[model], ServeOptions(model), GIVEN, with_encoder=has_towers(paths[model])) for model in MODELS.values()]
    extra = sorted(need.least - need.asleep for need in needs)
    return sum(need.asleep for need in needs) + extra[-1] + extra[-2] + (400 << 20)


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    models = [DEFAULT_MODEL, f"second={DEFAULT_MODEL}", f"embed={EMBEDDING_MODEL}"]
    with serving(
        *models, "--memory", str(memory_for_two()), "--encoder.cache-memory", "64M", "--gateway.api-key", "secret"
    ) as started:
        yield started


@pytest.fixture
async def client(server: Serving) -> AsyncIterator[httpx.AsyncClient]:
    url = server.wait_until_started()
    async with httpx.AsyncClient(base_url=url, headers=KEY, timeout=180, trust_env=False) as client:
        yield client


async def ask(client: httpx.AsyncClient, model: str, **options: Any) -> Any:
    """The vector, or the choice, that a model answers."""
    if model == "embed":
        response = await client.post("/v1/embeddings", json={"model": model, "input": ["What is the capital of France?"]})
        return response.raise_for_status().json()["data"][0]["embedding"]
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    body = {"model": model, "messages": messages, "temperature": 0, "max_tokens": 16, **options}
    return (await client.post("/v1/chat/completions", json=body)).raise_for_status().json()["choices"][0]


async def change(client: httpx.AsyncClient, what: str, name: str) -> dict[str, Any]:
    return (await client.post(f"/admin/models/{what}", json={"name": name})).raise_for_status().json() or {}


async def models_of(client: httpx.AsyncClient) -> dict[str, dict[str, Any]]:
    return {model["name"]: model for model in (await client.get("/admin/models")).raise_for_status().json()["models"]}


async def test_all_answer_although_there_is_memory_for_two(client: httpx.AsyncClient) -> None:
    states = [model["state"] for model in (await models_of(client)).values()]
    assert states == ["awake", "awake", "asleep"]
    for model in (*MODELS, *reversed(MODELS)):
        await ask(client, model)
        models = await models_of(client)
        assert models[model]["state"] == "awake"
        assert sum(one["state"] == "awake" for one in models.values()) == 2
        resident = sum(one["resident_bytes"] for one in models.values())
        print(f"{resident >> 20} MiB of {memory_for_two() >> 20}")
        # Libraries that processes share are in the figure of each of them.
        assert resident < memory_for_two() + (1 << 30)


async def test_requests_for_all_of_them_at_once_are_answered(client: httpx.AsyncClient) -> None:
    expected = {model: await ask(client, model) for model in MODELS}

    async def keep_asking(model: str, number: int) -> None:
        for _ in range(number):
            assert await ask(client, model) == expected[model]

    async with asyncio.TaskGroup() as tasks:
        for model in MODELS:
            for _ in range(3):
                tasks.create_task(keep_asking(model, 4))


async def test_a_model_that_was_asleep_answers_as_before_and_soon(client: httpx.AsyncClient) -> None:
    before = await ask(client, DEFAULT_MODEL, logprobs=True, top_logprobs=5)
    awake = (await models_of(client))[DEFAULT_MODEL]
    asleep = await change(client, "sleep", DEFAULT_MODEL)
    assert asleep["state"] == "asleep"
    assert asleep["resident_bytes"] < awake["resident_bytes"] - (250 << 20), "the weights are still there"
    await change(client, "sleep", "second")  # so that nobody has to give way
    start_s = time.monotonic()
    after = await ask(client, DEFAULT_MODEL, logprobs=True, top_logprobs=5)
    took_s = time.monotonic() - start_s
    print(f"woken and answered in {took_s:.1f} s")
    assert after == before
    assert took_s < WAKE_S * PATIENCE


async def test_a_pinned_model_does_not_give_way(client: httpx.AsyncClient) -> None:
    await change(client, "wake", DEFAULT_MODEL)
    await change(client, "pin", DEFAULT_MODEL)
    for model in ("second", "embed", "second"):
        await ask(client, model)
        assert (await models_of(client))[DEFAULT_MODEL]["state"] == "awake"
    await change(client, "wake", "embed")
    await change(client, "pin", "embed")
    refused = await client.post("/v1/chat/completions", json={"model": "second", "messages": [{"role": "user", "content": "Hi"}]})
    assert refused.status_code == 503
    told = await client.post("/admin/models/wake", json={"name": "second"})
    assert "beside those that are pinned" in told.json()["error"]["message"]
    for model in (DEFAULT_MODEL, "embed"):
        assert not (await change(client, "unpin", model))["pinned"]
    await ask(client, "second")


async def test_requests_wait_for_the_engine_of_a_model_that_dies_and_others_are_untouched(
    client: httpx.AsyncClient, server: Serving
) -> None:
    await change(client, "wake", "second")
    await ask(client, "embed")
    engines = [child for child in psutil.Process(server.process.pid).children() if "triptych_engine" in child.cmdline()]
    (victim,) = [child for child in engines if "second" in child.cmdline()]
    victim.kill()
    await asyncio.sleep(1)  # what a frontend has taken meanwhile gets a 503
    waiting = [asyncio.create_task(ask(client, "second")) for _ in range(4)]
    for _ in range(10):
        await ask(client, "embed")
    answers = await asyncio.gather(*waiting)
    assert all(answer == answers[0] for answer in answers)


async def test_a_model_is_loaded_and_unloaded(client: httpx.AsyncClient) -> None:
    await change(client, "unload", "second")
    assert (await client.post("/v1/completions", json={"model": "second", "prompt": "x"})).status_code == 404
    loaded = await client.post("/admin/models/load", json={"source": EMBEDDING_MODEL, "name": "third"})
    assert loaded.raise_for_status().json()["state"] == "awake"
    body = {"model": "third", "input": ["What is the capital of France?"]}
    async with asyncio.timeout(10):  # the gateway looks at its frontends every second
        while (response := await client.post("/v1/embeddings", json=body)).status_code == 404:  # noqa: ASYNC110
            await asyncio.sleep(0.2)
    assert response.raise_for_status().json()["data"][0]["embedding"] == await ask(client, "embed")
    missing = await client.post("/admin/models/load", json={"source": "/nowhere/model"})
    assert missing.status_code == 400
    assert (await client.post("/admin/models/wake", json={"name": "nobody"})).status_code == 404


async def test_only_operators_may(client: httpx.AsyncClient, server: Serving) -> None:
    for path in ("/admin/models", "/admin/models/sleep"):
        response = await client.request("GET" if path == "/admin/models" else "POST", path, headers={"authorization": "Bearer no"})
        assert response.status_code == 401
    address = server.wait_for(r"gRPC (\S+:\d+) ")[1]
    async with grpc.aio.insecure_channel(address) as channel:
        stub = models_pb2_grpc.ModelManagerServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.ListManagedModels(models_pb2.ListManagedModelsRequest())
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        response = await stub.ListManagedModels(
            models_pb2.ListManagedModelsRequest(), metadata=(("authorization", "Bearer secret"),)
        )
        assert DEFAULT_MODEL in [model.name for model in response.models]
