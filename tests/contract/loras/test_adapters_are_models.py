"""Adapters as models, from REST to a real engine: found in a directory, listed, named as `model:adapter`, replaced, refused."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import torch
from support.builders.engine import a_tiny_llama_config, save_random_model
from support.builders.frontend import IM_END_ID, TOKENIZER, ids
from support.builders.lora import peft_logits, save_adapter
from support.builders.tokenizer import VOCAB_SIZE, write_model
from support.fakes.gateway import client_of, until_connected
from support.media_stack import an_engine
from support.waiting import until
from triptych.status import from_rpc_error
from triptych.v1 import generation_pb2, generation_pb2_grpc
from triptych_common.rpc.channels import open_channel
from triptych_engine.runner.lora.directory import LoraDirectory
from triptych_engine.service import EngineService
from triptych_frontend.service import Frontend
from triptych_frontend.settings import FrontendSettings
from triptych_gateway.access.grant import Grant, Places
from triptych_gateway.access.key_ring import Key
from triptych_gateway.access.rates import MemoryRates
from triptych_gateway.app import create_app
from triptych_gateway.record import RequestRecord
from triptych_gateway.settings import GatewaySettings

PROMPT = "The quick brown fox jumps over the lazy dog."


@dataclass
class Suite:
    """A gateway, a frontend and engines of one model, in this process."""

    client: httpx.AsyncClient
    frontend: Frontend
    engines: list[EngineService]
    base: Path
    loras: Path

    async def complete(self, model: str, **body: Any) -> httpx.Response:
        given = {"model": model, "prompt": PROMPT, "temperature": 0, "max_tokens": 1, "logprobs": 0} | body
        return await self.client.post("/v1/completions", json=given)

    async def first_token(self, model: str, **body: Any) -> str:
        answer = (await self.complete(model, **body)).raise_for_status().json()
        assert answer["model"] == model
        token: str = answer["choices"][0]["logprobs"]["tokens"][0]
        return token

    async def listed(self) -> dict[str, str | None]:
        models = (await self.client.get("/v1/models")).raise_for_status().json()["data"]
        return {model["id"]: model["parent"] for model in models}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_model(tmp_path_factory.mktemp("lora") / "base")
    return save_random_model(path, a_tiny_llama_config(vocab_size=VOCAB_SIZE, eos_token_id=IM_END_ID))


@asynccontextmanager
async def suite(base: Path, loras: Path, num_engines: int = 1, **settings: Any) -> AsyncIterator[Suite]:
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(an_engine(base, lora_dir=loras, **settings)) for _ in range(num_engines)]
        addresses = tuple(f"127.0.0.1:{engine._server.port}" for engine in engines)
        frontend = Frontend(FrontendSettings(model=str(base), port=0, engine_addresses=addresses))
        await stack.enter_async_context(frontend.running())
        app = create_app(GatewaySettings(frontend_addresses=(f"127.0.0.1:{frontend.server.port}",)))
        await stack.enter_async_context(app.router.lifespan_context(app))
        await until_connected(app)
        await until(lambda: len(frontend._engines.ready) == num_engines and bool(app.state.gateway.pool.ready))
        client = await stack.enter_async_context(client_of(app))
        yield Suite(client, frontend, engines, base, loras)


def greedy_token(base: Path, adapter: Path | None, prompt: str = PROMPT) -> int:
    return int(peft_logits(base, adapter, ids(prompt))[-1].argmax())


def token_text(token_id: int) -> str:
    return TOKENIZER.decode([token_id], skip_special_tokens=False)


async def test_each_answers_with_its_own_weights_and_is_listed_with_its_parent(base: Path, tmp_path: Path) -> None:
    for seed, name in enumerate(("one", "two")):
        save_adapter(base, tmp_path / name, seed, std=0.3)
    async with suite(base, tmp_path) as served:
        name = base.name
        assert await served.listed() == {name: None, f"{name}:one": name, f"{name}:two": name}
        for model, folder in ((name, None), (f"{name}:one", tmp_path / "one"), (f"{name}:two", tmp_path / "two")):
            assert await served.first_token(model) == token_text(greedy_token(base, folder))
        described = (await served.client.get(f"/v1/models/{name}:one")).raise_for_status().json()
        assert (described["id"], described["parent"]) == (f"{name}:one", name)


async def test_every_dialect_names_it_with_the_model(base: Path, tmp_path: Path) -> None:
    save_adapter(base, tmp_path / "one", 1, std=0.3)
    asked = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, "temperature": 0}
    bodies = {
        "/v1/chat/completions": asked,
        "/v1/messages": asked,
        "/v1/responses": {"input": "Hi", "max_output_tokens": 8, "temperature": 0},
        "/api/chat": {"messages": asked["messages"], "stream": False, "options": {"num_predict": 8, "temperature": 0}},
    }
    async with suite(base, tmp_path) as served:
        for path, body in bodies.items():
            answers = []
            for model in (base.name, f"{base.name}:one"):
                answer = (await served.client.post(path, json={"model": model, **body})).raise_for_status().json()
                assert answer["model"] == model
                answers.append(answer.get("choices") or answer.get("content") or answer.get("message") or answer["output"])
            assert str(answers[0]) != str(answers[1]), path


def test_a_key_for_a_model_is_none_for_its_adapters() -> None:
    key = Key("k", b"", models=frozenset({"m", "m:one"}))
    grant = Grant(key, RequestRecord("r"), MemoryRates(), Places())
    assert [grant.may_use(name) for name in ("m", "m:one", "m:two")] == [True, True, False]


async def test_a_replaced_adapter_computes_the_prompt_anew(base: Path, tmp_path: Path) -> None:
    """vllm-project/vllm #42125: requests were answered from blocks that an earlier adapter of the same name had computed."""
    async with suite(base, tmp_path) as served:
        for seed, is_cached in ((1, False), (2, False), (1, True), (2, True)):  # what an adapter itself has computed is found again
            save_adapter(base, tmp_path / "one", seed, std=0.3)
            answer = (await served.complete(f"{base.name}:one", prompt=PROMPT * 3)).raise_for_status().json()
            expected = token_text(greedy_token(base, tmp_path / "one", PROMPT * 3))
            assert answer["choices"][0]["logprobs"]["tokens"] == [expected]
            assert bool(answer["usage"]["prompt_tokens_details"]["cached_tokens"]) == is_cached


async def test_an_adapter_comes_is_replaced_and_goes_while_requests_run(base: Path, tmp_path: Path) -> None:
    async with suite(base, tmp_path) as served:
        name = f"{base.name}:new"
        assert await served.listed() == {base.name: None}
        assert (await served.complete(name)).status_code == 404
        save_adapter(base, tmp_path / "new", 1, std=0.3)
        assert await served.first_token(name) == token_text(greedy_token(base, tmp_path / "new"))
        assert (await served.listed())[name] == base.name
        first = served.frontend._model.info.adapters[0].digest
        save_adapter(base, tmp_path / "new", 2, std=0.3)
        assert await served.first_token(name) == token_text(greedy_token(base, tmp_path / "new"))
        await until(lambda: served.frontend._model.info.adapters[0].digest not in ("", first))
        shutil.rmtree(tmp_path / "new")
        assert (await served.complete(name)).status_code == 404
        await until(lambda: not served.frontend._model.info.adapters)
        assert await served.listed() == {base.name: None}


@pytest.mark.parametrize("adapter", ["absent", "../loras/one", "/etc", ".", "a b", "one:two", "one/"])
async def test_names_of_no_adapter_are_404_and_no_path_is_followed(base: Path, tmp_path: Path, adapter: str) -> None:
    save_adapter(base, tmp_path / "loras" / "one", 1)
    async with suite(base, tmp_path / "loras") as served:
        response = await served.complete(f"{base.name}:{adapter}")
        error = response.json()["error"]
        assert (response.status_code, error["param"], error["code"]) == (404, "model", "model_not_found")
        assert str(tmp_path) not in response.text
        assert (await served.complete(f"{base.name}:")).status_code == 404


async def test_an_adapter_of_another_base_is_400_with_both_numbers(base: Path, tmp_path: Path) -> None:
    other = save_random_model(write_model(tmp_path / "other"), a_tiny_llama_config(vocab_size=VOCAB_SIZE, hidden_size=48))
    save_adapter(other, tmp_path / "loras" / "wide", 1)
    async with suite(base, tmp_path / "loras") as served:
        for stream in (False, True):
            response = await served.complete(f"{base.name}:wide", stream=stream)
            assert response.status_code == 400
            error = response.json()["error"]
            assert error["param"] == "model"
            assert all(part in error["message"] for part in ("has the shape", "48", "must be", "32"))


async def test_a_prompt_goes_where_its_blocks_are_under_the_same_adapter(base: Path, tmp_path: Path) -> None:
    save_adapter(base, tmp_path / "one", 1)
    async with suite(base, tmp_path, num_engines=2) as served:
        prompts = [f"{number} {PROMPT * 3}" for number in range(4)]
        for prompt in prompts:
            await served.complete(f"{base.name}:one", prompt=prompt)
        for prompt in prompts * 2:
            usage = (await served.complete(f"{base.name}:one", prompt=prompt)).json()["usage"]
            assert usage["prompt_tokens_details"]["cached_tokens"] >= usage["prompt_tokens"] - 16
        usage = (await served.complete(base.name, prompt=prompts[0])).json()["usage"]
        assert not (usage.get("prompt_tokens_details") or {}).get("cached_tokens")


async def test_more_adapters_than_have_a_place_are_told_to_come_back(base: Path, tmp_path: Path) -> None:
    for seed, name in enumerate(("one", "two")):
        save_adapter(base, tmp_path / name, seed)
    async with suite(base, tmp_path, max_loras=1) as served:
        store = served.engines[0]._loaded()._executor.runner.loras
        held = store.load("one").result(60)
        response = await served.complete(f"{base.name}:two")
        assert response.status_code == 503
        assert "Retry-After" in response.headers
        del held
        assert (await served.complete(f"{base.name}:two")).status_code == 200


async def test_the_frontend_answers_over_grpc_with_the_clients_name_of_the_field(base: Path, tmp_path: Path) -> None:
    save_adapter(base, tmp_path / "one", 1)
    async with suite(base, tmp_path) as served, open_channel(f"127.0.0.1:{served.frontend.server.port}") as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        request = generation_pb2.CompleteRequest(model=f"{base.name}:one", text=PROMPT)
        request.options.sampling.max_tokens = 1
        assert (await stub.Complete(request)).model == f"{base.name}:one"
        request.model = ""  # the only model, whatever adapters it has
        assert (await stub.Complete(request)).model == base.name
        request.model = f"{base.name}:absent"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Complete(request)
        assert (caught.value.code(), from_rpc_error(caught.value).field) == (grpc.StatusCode.NOT_FOUND, "model")


async def test_an_adapter_that_only_one_engine_has_is_found_there(base: Path, tmp_path: Path) -> None:
    save_adapter(base, tmp_path / "a" / "one", 1)
    (tmp_path / "b").mkdir()
    async with suite(base, tmp_path / "b", num_engines=2) as served:
        engine = served.engines[1]
        engine._loaded()._executor.runner.loras._directory = LoraDirectory(tmp_path / "a")
        for number in range(6):
            response = await served.complete(f"{base.name}:one", prompt=f"{number}")
            assert response.status_code == 200, response.text
        assert (await served.complete(f"{base.name}:absent")).status_code == 404


async def test_without_a_directory_there_are_no_adapters(base: Path, tmp_path: Path) -> None:
    async with suite(base, None) as served:  # type: ignore[arg-type]
        response = await served.complete(f"{base.name}:one")
        assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")
        assert await served.listed() == {base.name: None}


def test_random_adapters_change_the_answers(base: Path, tmp_path: Path) -> None:
    """Otherwise the tests above would prove nothing."""
    tokens = {greedy_token(base, None)}
    for seed in range(3):
        tokens.add(greedy_token(base, save_adapter(base, tmp_path / str(seed), seed, std=0.3)))
    assert len(tokens) > 2
    assert torch.get_default_dtype() == torch.float32
