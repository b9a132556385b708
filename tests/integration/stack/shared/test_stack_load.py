"""Many clients at once, and a third of them leave: every other request ends in a whole reply, and nothing is left behind."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from typing import Any

import aiohttp
import pytest
from support.stack import Stack
from triptych_common.settings import DEFAULT_MODEL

pytestmark = [pytest.mark.model, pytest.mark.timeout(300), pytest.mark.long]
_NUM_REQUESTS, _NUM_CLIENTS = 1000, 64
#: Longest time for all of it, several times what two free cores need.
_LIMIT_S = 240


def _body(number: int, dice: random.Random) -> dict[str, Any]:
    """One of a thousand requests: short and long prompts, shared and own prefixes, greedy and sampled."""
    common = {"model": DEFAULT_MODEL, "max_tokens": dice.randint(1, 12), "ignore_eos": True, "stream": dice.random() < 0.75}
    common |= {"temperature": dice.choice([0, 1]), "seed": number}
    subject = f"number {number if dice.random() < 0.5 else 7}, " * dice.choice([1, 1, 1, 8])
    if dice.random() < 0.5:
        return common | {"prompt": f"A story about {subject}"}
    return common | {"messages": [{"role": "user", "content": f"Tell me about {subject}"}]}


def _patience(number: int, body: dict[str, Any], dice: random.Random) -> int | float | None:
    """When the client leaves: after so many events of a stream, after so many seconds of silence; None for never."""
    if number % 3:
        return None
    return dice.randrange(body["max_tokens"]) if body["stream"] else dice.uniform(0, 0.2)


async def _last_choice(response: aiohttp.ClientResponse) -> Any:
    """The last choice of a whole answer, streamed or not. Raises AssertionError for anything less."""
    content = await response.text()
    assert response.status == 200, content
    if response.content_type == "application/json":
        return json.loads(content)["choices"][0]
    *_, last, done, rest = content.split("\n\n")
    assert (done, rest) == ("data: [DONE]", ""), content
    return json.loads(last.removeprefix("data: "))["choices"][0]


async def _ask(session: aiohttp.ClientSession, body: dict[str, Any], patience: int | float | None) -> str:
    """How a request ended. Whoever leaves closes the connection."""
    path = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
    try:
        async with asyncio.timeout(patience if isinstance(patience, float) else None), session.post(path, json=body) as response:
            if isinstance(patience, int):
                for _ in range(patience):
                    await response.content.readuntil(b"\n\n")
                response.close()
                return "left"
            choice = await _last_choice(response)
    except TimeoutError:
        return "left"
    assert choice["finish_reason"] == "length"
    return "whole"


async def test_1000_requests_from_64_clients_of_which_a_third_leave(stack: Stack) -> None:
    dice = random.Random(20)
    bodies = [_body(number, dice) for number in range(_NUM_REQUESTS)]
    requests = iter([(body, _patience(number, body, dice)) for number, body in enumerate(bodies)])
    ends: Counter[str] = Counter()

    async def client(session: aiohttp.ClientSession) -> None:
        for body, patience in requests:
            end = await _ask(session, body, patience)
            assert patience is not None or end == "whole"
            ends[end] += 1

    connector = aiohttp.TCPConnector(limit=_NUM_CLIENTS)
    async with (
        asyncio.timeout(_LIMIT_S),
        aiohttp.ClientSession(stack.url, connector=connector, trust_env=False) as session,
        asyncio.TaskGroup() as clients,
    ):
        for _ in range(_NUM_CLIENTS):
            clients.create_task(client(session))
    assert ends.total() == _NUM_REQUESTS
    assert ends["left"] > _NUM_REQUESTS / 5
    await asyncio.to_thread(stack.wait_until_empty)
