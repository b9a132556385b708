"""The client: the same closed loop of streams for every OpenAI-compatible server."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httptools
import orjson
import uvloop

from triptych_cli.load.figures import Answer, Figures, summarize
from triptych_cli.load.requests import Request, Target

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


@dataclass
class Outcome:
    """What became of the requests: answers, and why others failed."""

    answers: list[Answer] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    async def add(self, answering: Coroutine[Any, Any, Answer], timed_out: str = "") -> None:
        """Wait for an answer, and keep it, or why there is none."""
        try:
            self.answers.append(await answering)
        except TimeoutError as error:
            self.failures.append(timed_out or reason(error))
        except FAILURES as error:
            self.failures.append(reason(error))


async def put_load(target: Target, requests: Sequence[Request], concurrency: int, timeout_s: float) -> Figures:
    """Send each request once, so many at a time: as one answer ends, the next request goes out.

    Args:
        timeout_s: for the whole; what is not answered by then has failed.
    """
    outcome, deadline = Outcome(), asyncio.get_running_loop().time() + timeout_s

    async def in_time(request: Request) -> Answer:
        async with asyncio.timeout_at(deadline):
            return await send(target, request)

    late, start_s = f"not answered within {timeout_s:.0f} s", time.perf_counter()
    await closed_loop(requests, concurrency, lambda request: outcome.add(in_time(request), late))
    return summarize(outcome.answers, outcome.failures, time.perf_counter() - start_s)


async def closed_loop(requests: Iterable[Request], concurrency: int, ask: Callable[[Request], Coroutine[Any, Any, None]]) -> None:
    """Ask each request once, so many at a time: as one ends, the next begins."""
    waiting = iter(requests)

    async def work() -> None:
        for request in waiting:
            await ask(request)

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(work())


async def open_loop(requests: Iterable[Request], rate: float, ask: Callable[[Request], Coroutine[Any, Any, None]]) -> None:
    """Ask each request once, at times that do not wait for answers: so many a second on average, as a Poisson process has them."""
    due_s = asyncio.get_running_loop().time()
    async with asyncio.TaskGroup() as group:
        for request in requests:
            group.create_task(ask(request))
            due_s += random.expovariate(rate)
            await asyncio.sleep(due_s - asyncio.get_running_loop().time())


async def send(target: Target, request: Request) -> Answer:
    """The whole answer to a request. Raises one of FAILURES where it has another number of tokens than was asked for, too."""
    answer, max_tokens = await answer_to(target, request), request.body["max_tokens"]
    if answer.usage.get("completion_tokens") != max_tokens:
        raise RequestFailedError(f"usage of {max_tokens} output tokens expected, got {answer.usage}")
    return answer


async def answer_to(target: Target, request: Request) -> Answer:
    """One request on a connection of its own, as from clients that do not know each other; returns its whole answer.

    Where a server tells no usage, an answer has as many tokens as pieces, and its prompt none.

    Raises one of FAILURES where the answer is not whole, or has no text.
    """
    body = orjson.dumps({"model": target.model, **request.body})
    parts = urlsplit(target.url)
    loop = asyncio.get_running_loop()
    sent_s = time.perf_counter()
    reader = _Reader(loop.create_future())
    port = parts.port or (443 if target.tls else 80)
    transport, _ = await loop.create_connection(lambda: reader, parts.hostname or "", port, ssl=target.tls)
    try:
        key = f"Authorization: Bearer {target.api_key}\r\n" if target.api_key else ""
        head = (
            f"POST {parts.path}{request.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n{key}"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        transport.write(head.encode() + body)
        await reader.ended
    finally:
        transport.abort()
    if not reader.pieces_s:
        raise RequestFailedError("no text")
    usage, pieces_s = reader.usage, reader.pieces_s
    num_prompt_tokens, num_output_tokens = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or len(pieces_s)
    if not isinstance(num_prompt_tokens, int) or not isinstance(num_output_tokens, int):
        raise RequestFailedError(f"usage without numbers: {usage}")
    return Answer(sent_s, pieces_s, num_prompt_tokens, num_output_tokens, usage, reader.extension)


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
        data = self._rest + body
        if b"\r" in data:  # some servers end lines so
            data = data.replace(b"\r\n", b"\n")
        *events, self._rest = data.split(b"\n\n")
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
        try:
            if "error" in message:
                raise RequestFailedError(f"error event: {message['error']}")
            if usage := message.get("usage"):
                self.usage = {**usage}
            self.extension = message.get("triptych") or self.extension
            if any(map(_has_text, message.get("choices") or ())):
                self.pieces_s.append(time.perf_counter())
        except (AttributeError, TypeError) as error:
            raise RequestFailedError(f"an event is not as OpenAI's: {data.decode(errors='replace')[:150]}") from error

    def _end(self, error: Exception | None) -> None:
        if self.ended.done():
            return
        if error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)


def _has_text(choice: dict[str, Any]) -> bool:
    """Whether an event has text, of the answer or of what the model thinks."""
    if choice.get("text"):
        return True
    delta = choice.get("delta") or {}
    return bool(delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning"))
