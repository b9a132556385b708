"""PyPI's unmodified `smg` in front of two engines: it fetches the tokenizer, routes, and answers OpenAI's requests.

It is downloaded: `make test-ecosystem`. SMG writes prompts and parses answers itself, so that our frontends have no part in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from support.downloads import python_environment
from triptych.v1 import engine_pb2, engine_pb2_grpc
from triptych_cli.stack.ports import free_port
from triptych_common.model.store import TEXT_MODEL

pytestmark = [pytest.mark.ecosystem, pytest.mark.timeout(1200)]
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
_START_S = 120.0
NUM_LEAVING = int(os.environ.get("TRIPTYCH_CANCELS", "100"))


@pytest.fixture(scope="module")
def engines() -> Iterator[list[str]]:
    """The addresses of two engines."""
    addresses = [f"127.0.0.1:{free_port('127.0.0.1')}" for _ in range(2)]
    with contextlib.ExitStack() as stack:
        for address in addresses:
            flags = ["--port", address.rpartition(":")[2], "--control-port", str(free_port("127.0.0.1")), "--vllm-grpc"]
            command = [sys.executable, "-m", "triptych_engine", "--model", TEXT_MODEL, "--kv-cache-memory", "256M", *flags]
            stack.enter_context(_running(command))
        for address in addresses:
            _wait_for(lambda address=address: _load(address) is not None)
        yield addresses


@pytest.fixture(scope="module")
def python(pytestconfig: pytest.Config) -> Path:
    """The interpreter of an environment that has the router."""
    cache: Path = pytestconfig.cache.mkdir("ecosystem")  # type: ignore[union-attr]
    return python_environment(cache / "smg", "smg>=1.13")


@pytest.fixture(scope="module")
def url(engines: list[str], python: Path) -> Iterator[str]:
    """The address of a router that sends requests by turns."""
    with _router(python, engines, "round_robin") as url:
        yield url


@contextlib.contextmanager
def _router(python: Path, engines: list[str], policy: str) -> Iterator[str]:
    port, workers = free_port("127.0.0.1"), [f"grpc://{address}" for address in engines]
    command = [
        str(python), "-m", "smg", "launch", "--host", "127.0.0.1", "--port", str(port), "--worker-urls", *workers,
        "--policy", policy, "--prometheus-port", str(free_port("127.0.0.1")),
    ]  # fmt: skip
    with _running(command):
        url = f"http://127.0.0.1:{port}"
        _wait_for(lambda: _status(f"{url}/readiness") == 200 or _status(f"{url}/health") == 200)
        _wait_for(lambda: len(_models(url)) > 0)
        _wait_for(lambda: _answers(url))  # the router fetches the tokenizer after it has found the model
        yield url


@contextlib.contextmanager
def _running(command: list[str]) -> Iterator[None]:
    with subprocess.Popen(command) as process:
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(30)
            finally:
                process.kill()


def _wait_for(condition: Any) -> None:
    end_s = time.monotonic() + _START_S
    while not condition():
        assert time.monotonic() < end_s, "it did not start"
        time.sleep(0.3)


def _status(url: str) -> int:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(url, trust_env=False).status_code
    return 0


def _models(url: str) -> list[str]:
    answer = httpx.get(f"{url}/v1/models", trust_env=False)
    return [model["id"] for model in answer.json()["data"]] if answer.status_code == 200 else []


def _answers(url: str) -> bool:
    body = {"model": TEXT_MODEL, "messages": QUESTION, "max_tokens": 1}
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60, trust_env=False).status_code == 200


def _load(address: str) -> engine_pb2.Load | None:
    with grpc.insecure_channel(address) as channel, contextlib.suppress(grpc.RpcError):
        stub: Any = engine_pb2_grpc.EngineServiceStub(channel)
        load: engine_pb2.Load = stub.Describe(engine_pb2.EngineServiceDescribeRequest(), timeout=2).load
        return load
    return None


@pytest.fixture
async def client(url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as client:
        yield client


async def post(client: httpx.AsyncClient, path: str, **body: Any) -> dict[str, Any]:
    response = await client.post(path, json={"model": TEXT_MODEL, "temperature": 0, **body})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def chat(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    return await post(client, "/v1/chat/completions", **{"messages": QUESTION, "max_tokens": 24, **body})


async def test_a_chat(client: httpx.AsyncClient) -> None:
    answer = await chat(client)
    assert "Paris" in answer["choices"][0]["message"]["content"]
    assert answer["usage"]["completion_tokens"] > 1


async def test_a_stream_is_the_same_text(client: httpx.AsyncClient) -> None:
    whole = (await chat(client))["choices"][0]["message"]["content"]
    body = {"model": TEXT_MODEL, "messages": QUESTION, "temperature": 0, "max_tokens": 24, "stream": True}
    text, ends = "", []
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    text += choice["delta"].get("content") or ""
                    ends += [choice["finish_reason"]] if choice["finish_reason"] else []
    assert text == whole
    assert len(ends) == 1


async def test_a_limit_of_tokens(client: httpx.AsyncClient) -> None:
    answer = await chat(client, max_tokens=3)
    assert (answer["choices"][0]["finish_reason"], answer["usage"]["completion_tokens"]) == ("length", 3)


async def test_several_choices(client: httpx.AsyncClient) -> None:
    answer = await chat(client, n=3, temperature=1.0, seed=7)
    assert sorted(choice["index"] for choice in answer["choices"]) == [0, 1, 2]


async def test_a_seed_repeats(client: httpx.AsyncClient) -> None:
    first, second = [(await chat(client, temperature=1.0, seed=11))["choices"][0]["message"]["content"] for _ in range(2)]
    assert first == second


async def test_log_probabilities(client: httpx.AsyncClient) -> None:
    answer = await chat(client, max_tokens=4, logprobs=True, top_logprobs=2)
    entries = answer["choices"][0]["logprobs"]["content"]
    assert len(entries) == answer["usage"]["completion_tokens"]
    assert all(entry["logprob"] <= 0 for entry in entries)


async def test_a_stop_string(client: httpx.AsyncClient) -> None:
    answer = await chat(client, stop=["Paris"])
    assert "Paris" not in answer["choices"][0]["message"]["content"]
    assert answer["choices"][0]["finish_reason"] == "stop"


async def test_a_json_schema(client: httpx.AsyncClient) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}},
        "required": ["city"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
    answer = await chat(client, response_format=form, max_tokens=60)
    assert set(json.loads(answer["choices"][0]["message"]["content"])) == {"city"}


async def test_a_completion(client: httpx.AsyncClient) -> None:
    answer = await post(client, "/v1/completions", prompt="The capital of France is", max_tokens=6)
    assert answer["choices"][0]["text"]


async def test_penalties_and_bias_are_taken(client: httpx.AsyncClient) -> None:
    plain = (await chat(client))["choices"][0]["message"]["content"]
    penalised = await chat(client, presence_penalty=2.0, frequency_penalty=2.0, top_p=0.9, temperature=0.5, seed=1)
    assert penalised["choices"][0]["message"]["content"] != plain


async def test_both_engines_work(client: httpx.AsyncClient, engines: list[str]) -> None:
    before = [_generated(address) for address in engines]
    await asyncio.gather(*(chat(client, max_tokens=8) for _ in range(8)))
    after = [_generated(address) for address in engines]
    assert all(new > old for new, old in zip(after, before, strict=True))


async def test_a_new_router_knows_what_the_engines_hold(client: httpx.AsyncClient, engines: list[str], python: Path) -> None:
    """Prompts of nine blocks went to the engines by turns. A router that starts now sends each where its beginning is."""
    story = "The quick brown fox jumps over the lazy dog. " * 12
    questions = [[{"role": "user", "content": f"{number} {story}"}] for number in range(6)]
    for messages in questions:
        await chat(client, messages=messages, max_tokens=1)
    with _router(python, engines, "cache_aware") as url:
        async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as other:
            answers = [await chat(other, messages=messages, max_tokens=1) for messages in reversed(questions)]
    for answer in answers:
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] >= 128


async def test_a_request_that_is_too_long_is_refused(client: httpx.AsyncClient) -> None:
    body = {"model": TEXT_MODEL, "messages": [{"role": "user", "content": "word " * 20_000}], "max_tokens": 4}
    response = await client.post("/v1/chat/completions", json=body)
    assert 400 <= response.status_code < 500, response.text


async def test_clients_that_leave_leave_nothing_behind(client: httpx.AsyncClient, engines: list[str]) -> None:
    async def leave(number: int) -> None:
        body = {
            "model": TEXT_MODEL,
            "messages": [{"role": "user", "content": f"Tell me of {number}."}],
            "max_tokens": 400,
            "stream": True,
        }
        with contextlib.suppress(httpx.HTTPError, TimeoutError):
            async with (
                asyncio.timeout(0.2 + number % 5 * 0.1),
                client.stream("POST", "/v1/chat/completions", json=body) as response,
            ):
                async for _ in response.aiter_lines():
                    pass

    for first in range(0, NUM_LEAVING, 50):
        await asyncio.gather(*(leave(number) for number in range(first, first + 50)))
    async with asyncio.timeout(60):
        while any(load is None or load.num_running or load.num_waiting for load in map(_load, engines)):  # noqa: ASYNC110
            await asyncio.sleep(0.3)
    for address in engines:
        load = _load(address)
        assert load is not None
        assert load.num_free_blocks == load.num_blocks


def _generated(address: str) -> int:
    load = _load(address)
    assert load is not None
    return load.num_generated_tokens
