"""Completions with a suffix, over gRPC and through the gateway; the engine is a fake."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import ollama
import openai
import pytest
from fastapi import FastAPI
from grpc.aio import AioRpcError
from support.builders.frontend import frontend_bench, ids
from support.builders.tokenizer import byte_level_tokenizer, write_model
from support.fakes.engine import says
from support.fakes.gateway import until_connected
from support.waiting import until
from tokenizers import AddedToken
from triptych.errors import InvalidRequestError
from triptych.status import from_rpc_error
from triptych.v1 import common_pb2, generation_pb2
from triptych_gateway.app import create_app
from triptych_gateway.settings import GatewaySettings

MARKS = ("<fim_prefix>", "<fim_middle>", "<fim_suffix>", "<fim_pad>")
Complete, Options = generation_pb2.CompleteRequest, generation_pb2.GenerationOptions


@pytest.fixture(scope="module")
def coder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose tokenizer has StarCoder's tokens."""
    tokenizer = byte_level_tokenizer()
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in MARKS])
    return write_model(tmp_path_factory.mktemp("models") / "coder", tokenizer)


def app_of(bench: Any) -> FastAPI:
    return create_app(GatewaySettings(frontend_addresses=(f"127.0.0.1:{bench.frontend.server.port}",)))


@asynccontextmanager
async def openai_and_bench(model: Path | None, **answer: Any) -> AsyncIterator[tuple[openai.AsyncOpenAI, Any]]:
    async with frontend_bench(says(ids("x = 1"), **answer), model=model) as bench:
        app = app_of(bench)
        async with app.router.lifespan_context(app):
            await until_connected(app)
            http = httpx.AsyncClient(transport=httpx.ASGITransport(app))
            async with openai.AsyncOpenAI(base_url="http://g/v1", api_key="k", max_retries=0, http_client=http) as client:
                yield client, bench


async def test_the_middle_is_filled_in(coder: Path) -> None:
    backend = byte_level_tokenizer()
    backend.add_special_tokens([AddedToken(text, normalized=False) for text in MARKS])
    prefix_id, middle_id, suffix_id, pad_id = map(backend.token_to_id, MARKS)
    async with openai_and_bench(coder, stop_token_id=prefix_id) as (client, bench):
        answer = await client.completions.create(model="coder", prompt=["one", "two"], suffix=" three")
        assert [choice.text for choice in answer.choices] == ["x = 1", "x = 1"]
        assert [choice.finish_reason for choice in answer.choices] == ["stop", "stop"]
        prompts = [list(request.prompt_token_ids) for request in bench.engine.requests]
        assert sorted(prompts) == sorted([prefix_id, *ids(text), suffix_id, *ids(" three"), middle_id] for text in ("one", "two"))
        assert set(bench.engine.requests[-1].sampling.stop_token_ids) == {prefix_id, middle_id, suffix_id, pad_id}
        chunks = [chunk async for chunk in await client.completions.create(model="coder", prompt="one", suffix="z", stream=True)]
        assert "".join(chunk.choices[0].text for chunk in chunks) == "x = 1"
        # Nothing but a length ends an answer that must go on.
        await client.completions.create(model="coder", prompt="one", suffix="z", extra_body={"ignore_eos": True})
        assert not bench.engine.requests[-1].sampling.stop_token_ids


async def test_ollama_fills_in(coder: Path) -> None:
    async with frontend_bench(says(ids("x = 1")), model=coder) as bench:
        app = app_of(bench)
        async with app.router.lifespan_context(app):
            await until_connected(app)
            await until(lambda: bool(app.state.gateway.pool.ready))
            client = ollama.AsyncClient("http://g", transport=httpx.ASGITransport(app))
            try:
                assert "insert" in ((await client.show("coder")).capabilities or ())
                answer = await client.generate("coder", "def f():", suffix="return x")
            finally:
                await client.close()
        assert answer.response == "x = 1"
        assert len(bench.engine.requests[-1].prompt_token_ids) == len(ids("def f():")) + len(ids("return x")) + 3


async def test_a_model_that_cannot_is_named() -> None:
    async with openai_and_bench(None) as (client, _):
        name = (await client.models.list()).data[0].id
        with pytest.raises(openai.BadRequestError) as raised:
            await client.completions.create(model=name, prompt="one", suffix="two")
        assert raised.value.param == "suffix"
        assert f"the tokenizer of {name} has no tokens to fill in the middle" in raised.value.message
        # An empty one is none.
        assert (await client.completions.create(model=name, prompt="one", suffix="")).choices[0].text == "x = 1"


@pytest.mark.parametrize(
    ("fields", "at_fault"),
    [
        ({"token_ids": generation_pb2.TokenIds(ids=[5])}, "suffix"),
        ({"media": [common_pb2.MediaItem(modality=common_pb2.MODALITY_IMAGE, url="https://x/a.png")]}, "suffix"),
        ({"echo": True}, "echo"),
        ({"options": Options(truncate_prompt_tokens=5)}, "options.truncate_prompt_tokens"),
        ({"options": Options(sampling=common_pb2.SamplingParams(prompt_logprobs=1))}, "options.sampling.prompt_logprobs"),
        ({"text": "x" * 3000, "suffix": "y" * 3000}, "suffix"),
    ],
)
async def test_what_knows_no_suffix(coder: Path, fields: dict[str, Any], at_fault: str) -> None:
    given = {"text": "one", "suffix": "two"} | fields
    if "token_ids" in given:
        del given["text"]
    async with frontend_bench(model=coder, max_prompt_chars=5000) as bench:
        with pytest.raises(AioRpcError) as caught:
            await bench.generation.Complete(Complete(**given))
        error = from_rpc_error(caught.value)
        assert isinstance(error, InvalidRequestError)
        assert error.field == at_fault
        assert not bench.engine.requests


@pytest.mark.parametrize("fields", [{"prompt": [1, 2]}, {"prompt": "a", "echo": True}])
async def test_the_gateway_refuses_what_knows_no_suffix(coder: Path, fields: dict[str, Any]) -> None:
    async with openai_and_bench(coder) as (client, _):
        with pytest.raises(openai.BadRequestError) as raised:
            await client.completions.create(model="coder", suffix="b", **fields)
    assert raised.value.param == "suffix"
