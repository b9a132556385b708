"""The client: the same closed loop of streams for every OpenAI-compatible server."""

from __future__ import annotations

import asyncio
import random
import string
import time
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import httptools
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

    async def work() -> None:
        for prompt in waiting:
            try:
                async with asyncio.timeout_at(deadline):
                    streams.append(await _stream(target, prompt, max_tokens))
            except TimeoutError:
                failures.append(f"not answered within {timeout_s:.0f} s")
            except (OSError, httptools.HttpParserError, _RequestFailedError, ValueError, KeyError) as error:
                failures.append(f"{type(error).__name__.strip('_')}: {error}"[:200])

    start_s = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(concurrency)))
    return summarize(streams, failures, time.perf_counter() - start_s)


async def _stream(target: Target, prompt: str, max_tokens: int) -> Stream:
    body = {
        "model": target.model,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    sent_s = time.perf_counter()
    answer = await _post(target.url, "/v1/completions", orjson.dumps(body))
    usage = answer.usage
    if usage is None or usage["completion_tokens"] != max_tokens:
        raise _RequestFailedError(f"usage of {max_tokens} output tokens expected, got {usage}")
    if not answer.pieces_s:
        raise _RequestFailedError("no text")
    return Stream.of_times(sent_s, answer.pieces_s, usage["prompt_tokens"], usage["completion_tokens"])


async def _post(url: str, path: str, body: bytes) -> _Answer:
    """One request on a connection of its own, as from clients that do not know each other; returns its whole answer."""
    parts = urlsplit(url)
    loop = asyncio.get_running_loop()
    answer = _Answer(loop.create_future())
    transport, _ = await loop.create_connection(lambda: answer, parts.hostname, parts.port or 80)
    try:
        head = (
            f"POST {parts.path}{path} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        transport.write(head.encode() + body)
        await answer.ended
    finally:
        transport.abort()
    return answer


class _Answer(asyncio.Protocol):
    """Reads one answer off its socket.

    Sockets, a parser in C and nothing between: the client shares the machine with what it measures, and a general HTTP client cost
    more of it per token than some servers do.

    Args:
        ended: done when the answer is complete, or with what is wrong with it.
    """

    def __init__(self, ended: asyncio.Future[None]) -> None:
        self.ended = ended
        #: When each piece of text came.
        self.pieces_s: list[float] = []
        self.usage: dict | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._rest = b""
        self._is_done = False

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            self._end(error.__context__ if isinstance(error.__context__, Exception) else error)
        except httptools.HttpParserError as error:
            self._end(error)

    def connection_lost(self, error: Exception | None) -> None:
        self._end(error or _RequestFailedError("the connection was closed before the answer's end"))

    # What the parser calls.

    def on_body(self, body: bytes) -> None:
        if self._parser.get_status_code() != 200:
            self._rest += body
            return
        *events, self._rest = (self._rest + body).split(b"\n\n")
        for event in events:
            self._on_event(event)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status != 200:
            raise _RequestFailedError(f"status {status}: {self._rest.decode(errors='replace')[:150]}")
        if not self._is_done:
            raise _RequestFailedError("the stream ended without [DONE]")
        self._end(None)

    def _on_event(self, event: bytes) -> None:
        if not event.startswith(b"data:"):
            return
        data = event[5:].strip()
        if data == _DONE:
            self._is_done = True
            return
        message = orjson.loads(data)
        if "error" in message:
            raise _RequestFailedError(f"error event: {message['error']}")
        self.usage = message.get("usage") or self.usage
        if any(choice.get("text") for choice in message["choices"]):
            self.pieces_s.append(time.perf_counter())

    def _end(self, error: Exception | None) -> None:
        if self.ended.done():
            return
        if error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)
