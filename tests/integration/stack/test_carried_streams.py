"""Engines and encoders are killed, stopped and drained under load, and every stream goes on: with the text of an undisturbed run.

TRIPTYCH_FAULTS=40 pytest -m long -s tests/integration/stack/test_carried_streams.py
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import time
from collections import Counter
from collections.abc import Iterator

import httpx
import pytest
from support.faults import FAULTS, another_gateway, disturb, processes
from support.stack import Serving, serving
from support.stories import Heard, ask, client_at, streams
from support.waiting import until
from triptych_common.settings import DEFAULT_MODEL
from triptych_frontend.engines.connection import SILENCE_S

NUM_STREAMS = 64
NUM_FAULTS = int(os.environ.get("TRIPTYCH_FAULTS", "4"))
pytestmark = [pytest.mark.model, pytest.mark.timeout(300 + 90 * NUM_FAULTS), pytest.mark.long]
#: What passes until a fault of an engine is noticed, in seconds: a lost connection at once, silence after a while.
NOTICED_S = {"kill": 0.5, "stop": SILENCE_S + 0.5, "drain": 0.5}
#: The text is the same wherever a sequence is computed, and beside whatever others.
FLAGS = ["--engines", "2", "--encoders", "2", "--frontends", "2", "--engine.kv-cache-memory", "512M", "--engine.batch-invariant"]


@pytest.fixture(scope="module")
def stack() -> Iterator[tuple[Serving, tuple[str, str]]]:
    """A stack with two gateways, and their URLs."""
    with serving(*FLAGS) as server:
        url = server.wait_until_started()
        (gateway,) = processes(server, "gateway")
        with another_gateway(gateway.cmdline()) as other:
            yield server, (url, other)


async def token_cost_s(client: httpx.AsyncClient) -> float:
    """What an idle engine needs for a token of a prompt, in seconds."""
    body = {"model": DEFAULT_MODEL, "prompt": " ".join(map(str, range(200))), "max_tokens": 1, "temperature": 0}
    start_s = time.monotonic()
    answer = (await client.post("/v1/completions", json=body)).raise_for_status().json()
    return (time.monotonic() - start_s) / int(answer["usage"]["prompt_tokens"])


async def most_at_an_engine(client: httpx.AsyncClient) -> int:
    """How many sequences the engine has that has the most."""
    engines = (await client.get("/load")).raise_for_status().json()["engines"]
    return max((engine["num_running"] or 0) + (engine["num_waiting"] or 0) for engine in engines)


async def test_no_fault_of_an_engine_or_encoder_changes_a_text(stack: tuple[Serving, tuple[str, str]]) -> None:
    server, urls = stack
    async with client_at(urls[0]) as client:
        cost_s = await token_cost_s(client)
        undisturbed = await asyncio.gather(*(ask(client, number) for number in range(NUM_STREAMS)))
    assert [one.problem for one in undisturbed] == [""] * NUM_STREAMS
    chance, is_over = random.Random(NUM_FAULTS), asyncio.Event()
    problems: list[str] = []
    times: dict[tuple[str, str], list[Heard]] = {}
    ends: Counter[str] = Counter()
    current = ("none", "none")
    #: Tokens that the other engine has to compute again, by fault; the most of all times.
    lost_tokens: dict[tuple[str, str], int] = {}
    mean_tokens = statistics.mean(one.usage[0] + one.usage[1] / 2 for one in undisturbed)

    async def listen() -> None:
        async for number, heard in streams(urls, is_over):
            ends["whole" if not heard.problem else "bad"] += 1
            times.setdefault(current, []).append(heard)
            if heard.problem:
                problems.append(f"{current} {number}: {heard.problem}")
            elif heard.answer != undisturbed[number].answer:
                problems.append(f"{current} {number}: {heard.answer}, not {undisturbed[number].answer}")

    listening = asyncio.create_task(listen())
    await until(lambda: ends.total() >= NUM_STREAMS, 120)
    for number in range(NUM_FAULTS):
        current = FAULTS[number % len(FAULTS)]
        victim = chance.choice(processes(server, current[0]))
        before = ends.total()
        async with client_at(urls[0]) as client:
            num_lost = round(await most_at_an_engine(client) * mean_tokens)
        lost_tokens[current] = max(num_lost, lost_tokens.get(current, 0))
        await disturb(server, *current, victim)
        await until(lambda before=before: ends.total() >= before + NUM_STREAMS, 120)  # type: ignore[misc]
        assert len(processes(server, current[0])) == 2
    is_over.set()
    await listening
    for fault, answers in times.items():
        told = [
            f"{what} p50 {statistics.median(seconds):.2f} s, p99 {statistics.quantiles(seconds, n=100)[98]:.2f} s"
            for what, seconds in (
                ("first token", [one.first_s for one in answers]),
                ("longest pause", [one.longest_pause_s for one in answers]),
            )
        ]
        if fault[0] == "engine":
            most_s = NOTICED_S[fault[1]] + 1.5 * lost_tokens[fault] * cost_s
            pause_s = statistics.quantiles([one.longest_pause_s for one in answers], n=100)[98]
            told.append(f"{lost_tokens[fault]} tokens of {1e3 * cost_s:.2f} ms are computed again: at most {most_s:.2f} s")
            if pause_s > most_s:
                problems.append(f"{fault}: p99 of the pauses is {pause_s:.2f} s, not {most_s:.2f}")
        slowest = [one.number for one in sorted(answers, key=lambda one: one.longest_pause_s)[-4:]]
        print(f"{fault}: {len(answers)} streams, {'; '.join(told)}; slowest: {slowest}")
    print(dict(ends), f"{NUM_FAULTS} faults, {len(problems)} problems")
    assert problems == []
