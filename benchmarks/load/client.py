"""The client: the same closed loop of streams for every OpenAI-compatible server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httptools
import orjson
import uvloop

from benchmarks.load.figures import Answer, Figures, summarize
from benchmarks.load.requests import Request, Target

_DONE = b"[DONE]"
T = TypeVar("T")


class RequestFailedError(Exception):
    """A request that did not end as it should; the message is one line."""


#: What a request that fails raises, TimeoutError among them.
FAILURES = (OSError, httptools.HttpParserError, RequestFailedError, ValueError, KeyError)


def reason(error: BaseException) -> str:
    """Why a request failed, in one line."""
    return f"{type(error).__name__}: {error}"[:200]


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run it on the client's event loop."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


async def put_load(target: Target, requests: Sequence[Request], concurrency: int, timeout_s: float) -> Figures:
    """Send each request once, so many at a time: as one answer ends, the next request goes out.

    Args:
        timeout_s: for the whole; what is not answered by then has failed.
    """
    answers: list[Answer] = []
    failures: list[str] = []
    waiting = iter(requests)
    deadline = asyncio.get_running_loop().time() + timeout_s

    async def work() -> None:
        for request in waiting:
            try:
                async with asyncio.timeout_at(deadline):
                    answers.append(await send(target, request))
            except TimeoutError:
                failures.append(f"not answered within {timeout_s:.0f} s")
            except FAILURES as error:
                failures.append(reason(error))

    start_s = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(concurrency)))
    return summarize(answers, failures, time.perf_counter() - start_s)


async def send(target: Target, request: Request) -> Answer:
    """One request on a connection of its own, as from clients that do not know each other; returns its whole answer.

    Raises one of FAILURES where the answer is not whole, or has another number of tokens than was asked for.
    """
    body = orjson.dumps({"model": target.model, **request.body})
    parts = urlsplit(target.url)
    loop = asyncio.get_running_loop()
    sent_s = time.perf_counter()
    reader = _Reader(loop.create_future())
    transport, _ = await loop.create_connection(lambda: reader, parts.hostname or "", parts.port or 80)
    try:
        head = (
            f"POST {parts.path}{request.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        transport.write(head.encode() + body)
        await reader.ended
    finally:
        transport.abort()
    usage, max_tokens = reader.usage, request.body["max_tokens"]
    if usage.get("completion_tokens") != max_tokens:
        raise RequestFailedError(f"usage of {max_tokens} output tokens expected, got {usage}")
    if not reader.pieces_s:
        raise RequestFailedError("no text")
    return Answer(sent_s, reader.pieces_s, usage["prompt_tokens"], max_tokens, usage, reader.extension)


class _Reader(asyncio.Protocol):
    """Reads one streamed answer off its socket.

    Sockets, a parser in C and nothing between: the client shares the machine with what it measures, and a general HTTP client cost
    more of it per token than some servers do.

    Args:
        ended: done when the answer is complete, or with what is wrong with it.
    """

    def __init__(self, ended: asyncio.Future[None]) -> None:
        self.ended = ended
        self.pieces_s: list[float] = []
        self.usage: dict[str, Any] = {}
        self.extension: dict[str, Any] = {}
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
        self._end(error or RequestFailedError("the connection was closed before the answer's end"))

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
            raise RequestFailedError(f"status {status}: {self._rest.decode(errors='replace')[:150]}")
        if not self._is_done:
            raise RequestFailedError("the stream ended without [DONE]")
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
            raise RequestFailedError(f"error event: {message['error']}")
        self.usage = message.get("usage") or self.usage
        self.extension = message.get("triptych") or self.extension
        if any(choice.get("text") or (choice.get("delta") or {}).get("content") for choice in message["choices"]):
            self.pieces_s.append(time.perf_counter())

    def _end(self, error: Exception | None) -> None:
        if self.ended.done():
            return
        if error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)
