"""Engines and encoders are killed, stopped and drained under load, and every stream goes on: with the text of an undisturbed run.

TRIPTYCH_FAULTS=40 pytest -m long -s tests/integration/stack/test_carried_streams.py
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import random
import re
import signal
import statistics
import subprocess
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import httpx
import psutil
import pytest
from PIL import Image
from support.stack import Serving, serving
from support.waiting import until
from triptych.v1 import control_pb2, control_pb2_grpc
from triptych_common.rpc.channels import CHANNEL_OPTIONS
from triptych_common.settings import DEFAULT_MODEL
from triptych_frontend.engines.connection import SILENCE_S

NUM_STREAMS = 64
MAX_TOKENS = 40
STOP_S = 20.0
FAULTS = [
    ("engine", "kill"),
    ("engine", "stop"),
    ("engine", "drain"),
    ("encoder", "kill"),
    ("encoder", "stop"),
    ("encoder", "drain"),
]
NUM_FAULTS = int(os.environ.get("TRIPTYCH_FAULTS", "4"))
pytestmark = [pytest.mark.model, pytest.mark.timeout(300 + 90 * NUM_FAULTS), pytest.mark.long]
#: What passes until a fault of an engine is noticed, in seconds: a lost connection at once, silence after a while.
NOTICED_S = {"kill": 0.5, "stop": SILENCE_S + 0.5, "drain": 0.5}
#: The text is the same wherever a sequence is computed, and beside whatever others.
FLAGS = ["--engines", "2", "--encoders", "2", "--frontends", "2", "--engine.kv-cache-memory", "512M", "--engine.batch-invariant"]


def picture(number: int) -> str:
    """A picture of its own for each number."""
    file = io.BytesIO()
    Image.frombytes("RGB", (24, 24), random.Random(number).randbytes(24 * 24 * 3)).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def body_of(number: int) -> dict[str, Any]:
    """The request of a stream. A third has a picture, a third is sampled, some are constrained, some want log probabilities."""
    content: list[dict[str, Any]] = [{"type": "text", "text": f"Tell me a story about the number {number}."}]
    if number % 3 == 0:
        content.insert(0, {"type": "image_url", "image_url": {"url": picture(number)}})
    body: dict[str, Any] = {
        "model": DEFAULT_MODEL,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": MAX_TOKENS,
        "messages": [{"role": "user", "content": content}],
        "temperature": 0,
    }
    if number % 3 == 1:
        body |= {"temperature": 1.0, "seed": number, "frequency_penalty": 0.5}
    if number % 5 == 2:
        body["structured_outputs"] = {"regex": "([a-z]{3,9} ){4,40}[.]"}
    if number % 4 == 1:
        body |= {"logprobs": True, "top_logprobs": 2}
    return body


@dataclass
class Heard:
    """What a client got."""

    number: int = 0
    text: str = ""
    tokens: list[tuple[str, float]] = field(default_factory=list)
    finish_reason: str = ""
    usage: tuple[int, int] = (0, 0)
    first_s: float = 0.0
    #: Between two events.
    longest_pause_s: float = 0.0
    problem: str = ""

    @property
    def answer(self) -> object:
        return self.text, self.tokens, self.finish_reason, self.usage


async def ask(client: httpx.AsyncClient, number: int) -> Heard:
    heard, last_s = Heard(number), time.monotonic()
    async with client.stream("POST", "/v1/chat/completions", json=body_of(number)) as response:
        if response.status_code != 200:
            heard.problem = f"refused with {response.status_code}: {(await response.aread())[:200]!r}"
            return heard
        async for line in response.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            now_s = time.monotonic()
            if heard.first_s:
                heard.longest_pause_s = max(heard.longest_pause_s, now_s - last_s)
            else:
                heard.first_s = now_s - last_s
            last_s = now_s
            chunk = json.loads(line[6:])
            if "error" in chunk:
                heard.problem = f"broken: {chunk['error']}"
                return heard
            for choice in chunk["choices"]:
                heard.text += choice["delta"].get("content") or ""
                heard.finish_reason = choice["finish_reason"] or heard.finish_reason
                entries = (choice.get("logprobs") or {}).get("content") or ()
                heard.tokens += [(entry["token"], round(entry["logprob"], 3)) for entry in entries]
            if chunk.get("usage"):
                heard.usage = chunk["usage"]["prompt_tokens"], chunk["usage"]["completion_tokens"]
    heard.problem = "" if heard.finish_reason else "cut"
    return heard


@pytest.fixture(scope="module")
def stack() -> Iterator[tuple[Serving, tuple[str, str]]]:
    """A stack with two gateways, and their URLs."""
    with serving(*FLAGS) as server:
        url = server.wait_until_started()
        (gateway,) = processes(server, "gateway")
        with another_gateway(gateway.cmdline()) as other:
            yield server, (url, other)


@contextmanager
def another_gateway(command: list[str]) -> Iterator[str]:
    """A second gateway like the one that was started so; yields its URL."""
    for flag in ("--port", "--grpc-port"):
        command[command.index(flag) + 1] = "0"
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            url = next(found[1] for line in process.stderr if (found := re.search(r"listening on (http://\S+),", line)))
            # What it logs later must not fill the pipe.
            threading.Thread(target=process.stderr.read, daemon=True).start()
            yield url
        finally:
            process.kill()


def processes(stack: Serving, kind: str) -> list[psutil.Process]:
    children = psutil.Process(stack.process.pid).children()
    return [child for child in children if f"triptych_{kind}" in child.cmdline()]


def control_of(process: psutil.Process) -> grpc.aio.Channel:
    arguments = process.cmdline()
    return grpc.aio.insecure_channel(f"127.0.0.1:{arguments[arguments.index('--control-port') + 1]}", CHANNEL_OPTIONS)


async def disturb(stack: Serving, kind: str, fault: str, victim: psutil.Process) -> None:
    """One fault, from its beginning until the service is ready again."""
    if fault == "kill":
        ready = rf"{kind}\S* is ready"
        num_starts = len(re.findall(ready, stack.log))
        victim.kill()
        await asyncio.to_thread(stack.wait_for, ready, num_starts + 1, 120)
    elif fault == "stop":
        victim.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(STOP_S)
        finally:
            victim.send_signal(signal.SIGCONT)
        await asyncio.sleep(2)
    else:
        async with control_of(victim) as channel:
            control = control_pb2_grpc.ControlServiceStub(channel)
            await control.Drain(control_pb2.DrainRequest(timeout_s=30))
            await control.WakeUp(control_pb2.WakeUpRequest())


async def streams(urls: tuple[str, str], is_over: asyncio.Event) -> AsyncIterator[tuple[int, Heard]]:
    """Answers of clients that ask one after the other, half of them at each gateway, as long as it is not over."""
    answers: asyncio.Queue[tuple[int, Heard]] = asyncio.Queue()
    async with AsyncExitStack() as stack:
        gateways = [await stack.enter_async_context(client_at(url)) for url in urls]

        async def client_of(number: int) -> None:
            while not is_over.is_set():
                answers.put_nowait((number, await ask(gateways[number % 2], number)))

        clients = [asyncio.create_task(client_of(number)) for number in range(NUM_STREAMS)]
        try:
            while not answers.empty() or not all(one.done() for one in clients):
                try:
                    async with asyncio.timeout(0.2):
                        yield await answers.get()
                except TimeoutError:
                    continue
            for one in clients:
                one.result()
        finally:
            for one in clients:
                one.cancel()
            await asyncio.gather(*clients, return_exceptions=True)


def client_at(url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, timeout=180, limits=httpx.Limits(max_connections=NUM_STREAMS), trust_env=False)


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
