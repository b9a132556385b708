"""`triptych serve` with three models and memory for two: chat, chat and embeddings from one gateway, by turns."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from support.stack import Serving, serving
from triptych_common.model.store import EMBEDDING_MODEL
from triptych_common.settings import DEFAULT_MODEL

pytestmark = [pytest.mark.model, pytest.mark.long]
KEY = {"authorization": "Bearer secret"}
#: What waking takes at most, in seconds; on a machine that is busy with other tests twice that.
WAKE_S = 3.0
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    models = [DEFAULT_MODEL, f"second={DEFAULT_MODEL}", f"embed={EMBEDDING_MODEL}"]
    with serving(*models, "--memory", "9G", "--engine.kv-cache-memory", "64M", "--gateway.api-key", "secret") as started:
        yield started


@pytest.fixture
async def client(server: Serving) -> AsyncIterator[httpx.AsyncClient]:
    url = server.wait_until_started()
    async with httpx.AsyncClient(base_url=url, headers=KEY, timeout=180, trust_env=False) as client:
        yield client


async def ask(client: httpx.AsyncClient, model: str, **options: Any) -> Any:
    if model == "embed":
        response = await client.post("/v1/embeddings", json={"model": model, "input": ["What is the capital of France?"]})
    else:
        body = {"model": model, "messages": QUESTION, "temperature": 0, "max_tokens": 16, **options}
        response = await client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    answer = response.json()
    return answer["data"][0]["embedding"] if model == "embed" else answer["choices"][0]["message"]["content"]


async def change(client: httpx.AsyncClient, what: str, name: str) -> dict[str, Any]:
    return (await client.post(f"/admin/models/{what}", json={"name": name})).raise_for_status().json() or {}


async def models_of(client: httpx.AsyncClient) -> dict[str, dict[str, Any]]:
    return {model["name"]: model for model in (await client.get("/admin/models")).raise_for_status().json()["models"]}
