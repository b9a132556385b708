"""Streams of stories: pictures, seeds, constraints and log probabilities among them, and what a client gets of them."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import httpx
from PIL import Image
from triptych_common.settings import DEFAULT_MODEL

MAX_TOKENS = 40


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


def client_at(url: str, num_streams: int = 64) -> httpx.AsyncClient:
    """A client of so many streams at once."""
    return httpx.AsyncClient(base_url=url, timeout=180, limits=httpx.Limits(max_connections=num_streams), trust_env=False)


async def streams(urls: Sequence[str], is_over: asyncio.Event, num_streams: int = 64) -> AsyncIterator[tuple[int, Heard]]:
    """Answers of clients that ask one after the other, by turns at the gateways, as long as it is not over."""
    answers: asyncio.Queue[tuple[int, Heard]] = asyncio.Queue()
    async with AsyncExitStack() as stack:
        gateways = [await stack.enter_async_context(client_at(url)) for url in urls]

        async def client_of(number: int) -> None:
            while not is_over.is_set():
                answers.put_nowait((number, await ask(gateways[number % len(gateways)], number)))

        clients = [asyncio.create_task(client_of(number)) for number in range(num_streams)]
        try:
            while not answers.empty() or not all(one.done() for one in clients):
                try:
                    async with asyncio.timeout(0.2):  # `wait_for` of Python 3.11 may lose that this task is cancelled
                        answer = await answers.get()
                except TimeoutError:
                    continue
                yield answer
            for one in clients:
                one.result()
        finally:
            for one in clients:
                one.cancel()
            await asyncio.gather(*clients, return_exceptions=True)
