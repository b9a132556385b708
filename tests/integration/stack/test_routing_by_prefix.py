"""Two engines and conversations of several turns: with `prefix`, each turn finds the earlier ones in a prefix cache."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from support.stack import serving
from triptych_common.settings import DEFAULT_MODEL

pytestmark = [pytest.mark.model, pytest.mark.long]
# Odd, so that each turn of a conversation finds the other one of two engines next in turn.
NUM_CONVERSATIONS, NUM_TURNS = 7, 4
SYSTEM = "You are a helpful assistant of a library. " * 12


async def converse(client: httpx.AsyncClient, number: int) -> None:
    messages = [{"role": "system", "content": SYSTEM}]
    for turn in range(NUM_TURNS):
        # The first turn is long, as where people ask about a document: the others cost less where it is known.
        question = f"what do you know of book {number}? " * (3 if turn else 24)
        messages.append({"role": "user", "content": f"Question {number}.{turn}: {question}"})
        body = {"model": DEFAULT_MODEL, "messages": messages, "max_tokens": 24, "temperature": 0}
        answer = (await client.post("/v1/chat/completions", json=body)).raise_for_status().json()
        messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})


async def engines_of(client: httpx.AsyncClient) -> list[dict[str, Any]]:
    return (await client.get("/load")).raise_for_status().json()["engines"]


async def all_serve(client: httpx.AsyncClient) -> None:
    async with asyncio.timeout(60):
        while any(engine["state"] != "serving" for engine in await engines_of(client)):  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def hits_of(routing: str, num_engines: int = 2) -> tuple[float, list[int]]:
    """The share of the prompt tokens that were found in prefix caches, and the tokens that each engine looked up."""
    with serving("--engines", str(num_engines), "--frontend.routing", routing, "--engine.kv-cache-memory", "256M") as server:
        url = server.wait_until_started()
        async with httpx.AsyncClient(base_url=url, timeout=180, trust_env=False) as client:
            await all_serve(client)  # one of them suffices to be ready
            async with asyncio.TaskGroup() as tasks:
                for number in range(NUM_CONVERSATIONS):
                    tasks.create_task(converse(client, number))
            await asyncio.sleep(1)
            engines = await engines_of(client)
    hits, queries = (sum(engine[f"prefix_cache_{name}"] for engine in engines) for name in ("hits", "queries"))
    return hits / queries, [engine["prefix_cache_queries"] for engine in engines]


async def test_conversations_stay_where_their_beginning_is() -> None:
    alone, _ = await hits_of("prefix", 1)
    by_prefix, looked_up = await hits_of("prefix")
    in_turns, _ = await hits_of("round-robin")
    print(f"found in prefix caches: {by_prefix:.3f} by prefix, {in_turns:.3f} in turns, {alone:.3f} by one engine; {looked_up}")
    # An engine computes the system prompt once, and of each turn what is new.
    assert by_prefix > 0.95 * alone
    assert by_prefix > in_turns + 0.05
    assert min(looked_up) > 0.2 * sum(looked_up), "both engines work"
