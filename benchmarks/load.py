"""The client: the same closed loop of streams for every OpenAI-compatible server."""

from __future__ import annotations

import asyncio
import random
import string
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import aiohttp
import orjson
from figures import Figures, Stream, summarize

_WORDS = (
    "sea", "river", "mountain", "bird", "engine", "letter", "garden", "winter", "copper", "violin",
    "harbour", "planet", "bread", "lantern", "mirror", "forest", "market", "signal", "thunder", "paper",
    "castle", "orange", "window", "bridge", "island", "candle",
)  # fmt: skip
_TAG_LENGTH = 6
_DONE = b"[DONE]"


@dataclass(frozen=True)
class Target:
    """A server under load."""

    name: str
    url: str
    model: str


class Prompts:
    """Prompts of which no two begin alike, over the whole sitting: no prefix cache can help anybody."""

    def __init__(self, num_words: int, seed: int = 0) -> None:
        self._num_words = num_words
        self._random = random.Random(seed)
        self._tags: set[str] = set()

    def take(self, count: int) -> list[str]:
        """Prompts that were not given out before."""
        return [" ".join([self._new_tag(), *self._random.choices(_WORDS, k=self._num_words - 1)]) for _ in range(count)]

    def _new_tag(self) -> str:
        while (tag := "".join(self._random.choices(string.ascii_lowercase, k=_TAG_LENGTH))) in self._tags:
            pass
        self._tags.add(tag)
        return tag


class _RequestFailedError(Exception):
    """A request that did not end as it should; the message is one line."""


async def put_load(target: Target, prompts: Sequence[str], concurrency: int, max_tokens: int, timeout_s: float) -> Figures:
    """Send each prompt once, so many at a time: as one answer ends, the next request goes out.

    Args:
        timeout_s: for the whole; what is not answered by then has failed.
    """
    streams: list[Stream] = []
    failures: list[str] = []
    waiting = iter(prompts)
    deadline = asyncio.get_running_loop().time() + timeout_s

    async def work(session: aiohttp.ClientSession) -> None:
        for prompt in waiting:
            try:
                async with asyncio.timeout_at(deadline):
                    streams.append(await _stream(session, target, prompt, max_tokens))
            except TimeoutError:
                failures.append(f"not answered within {timeout_s:.0f} s")
            except (aiohttp.ClientError, _RequestFailedError, ValueError, KeyError) as error:
                failures.append(f"{type(error).__name__.strip('_')}: {error}"[:200])

    # A connection per request, as from clients that do not know each other. Bounded by our own deadline alone.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:
        start_s = time.perf_counter()
        await asyncio.gather(*(work(session) for _ in range(concurrency)))
        return summarize(streams, failures, time.perf_counter() - start_s)


async def _stream(session: aiohttp.ClientSession, target: Target, prompt: str, max_tokens: int) -> Stream:
    body = {
        "model": target.model,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    pieces_s: list[float] = []
    usage: dict | None = None
    sent_s = time.perf_counter()
    async with session.post(f"{target.url}/v1/completions", json=body) as response:
        if response.status != 200:
            raise _RequestFailedError(f"status {response.status}: {(await response.text())[:150]}")
        async for event in _events(response):
            if "error" in event:
                raise _RequestFailedError(f"error event: {event['error']}")
            usage = event.get("usage") or usage
            if any(choice.get("text") for choice in event["choices"]):
                pieces_s.append(time.perf_counter())
    if usage is None or usage["completion_tokens"] != max_tokens:
        raise _RequestFailedError(f"usage of {max_tokens} output tokens expected, got {usage}")
    if not pieces_s:
        raise _RequestFailedError("no text")
    return Stream.of_times(sent_s, pieces_s, usage["prompt_tokens"], usage["completion_tokens"])


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[dict]:
    """The JSON of each server-sent event; ends at [DONE], whose absence is a failure."""
    async for line in response.content:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == _DONE:
            return
        yield orjson.loads(data)
    raise _RequestFailedError("the stream ended without [DONE]")
