"""Adapters in a suite with two engines: an answer whose engine is killed goes on with the same adapter."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import openai
import psutil
import pytest
from support.builders.lora import save_adapter
from support.stack import Serving, serving
from support.waiting import until
from triptych_common.model.store import TEXT_MODEL, resolve_model

pytestmark = [pytest.mark.model, pytest.mark.timeout(300), pytest.mark.long]
NAMES = ("one", "two")
NUM_TOKENS = 48


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Serving, str]]:
    folder = tmp_path_factory.mktemp("loras")
    for seed, name in enumerate(NAMES):
        save_adapter(resolve_model(TEXT_MODEL), folder / name, seed, std=0.05)
    flags = ["--engines", "2", "--engine.kv-cache-memory", "128M", "--engine.batch-invariant", "--engine.lora-dir", str(folder)]
    with serving(TEXT_MODEL, *flags) as server:
        yield server, server.wait_until_started()


async def test_a_killed_engine_changes_no_text(suite: tuple[Serving, str]) -> None:
    server, url = suite
    models = [TEXT_MODEL, *(f"{TEXT_MODEL}:{name}" for name in NAMES)]
    num_received = 0

    async def answer(client: openai.AsyncOpenAI, model: str, number: int) -> str:
        nonlocal num_received
        text = ""
        stream = await client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": f"Tell me a story about the number {number}."}],
            max_tokens=NUM_TOKENS,
            temperature=0,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        async for chunk in stream:
            text += chunk.choices[0].delta.content or "" if chunk.choices else ""
            num_received += 1
        return text

    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        assert {model.id for model in (await client.models.list()).data} == set(models)
        asked = [(model, number) for number in range(3) for model in models]
        expected = [await answer(client, *one) for one in asked]
        assert len(set(expected)) == len(asked)
        num_received = 0
        work = asyncio.gather(*(answer(client, *one) for one in asked))
        await until(lambda: num_received > NUM_TOKENS, 60)
        engines = [child for child in psutil.Process(server.process.pid).children() if "triptych_engine" in child.cmdline()]
        engines[0].kill()
        assert await work == expected
