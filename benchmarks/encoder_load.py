"""The two loads of benchmarks/encoder.py: one picture asked about in several ways, and text streams beside a flood of new ones."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import figures
import orjson
from child import ChildError
from encoder_wire import Traffic
from load import FAILURES, Answer, Prompts, RequestFailedError, Target, post, reason
from pictures import FIRST_TURN, OTHER_QUESTION, QUESTION, Picture, about, chat

NUM_STREAMS = 4
#: Of each answer about a picture; the first one's time is what counts.
PICTURE_TOKENS = 8
_PROMPT_WORDS = 16
#: Until the streams have all begun, in seconds.
_SETTLE_S = 3.0


@dataclass(frozen=True)
class Case:
    """A way to ask about a picture, and what Triptych must say about it: else it is not the case that it claims to be.

    Attributes:
        encoder_cache: where the encoder may have found it; None is no answer from it before the first token.
        sources: how its embeddings may have come to the engine.
        is_prefix: whether its KV was in the prefix cache.
        is_after_forgetting: the engine has forgotten all prefixes and embeddings before; not possible with every server.
    """

    name: str
    encoder_cache: tuple[str | None, ...]
    sources: tuple[str, ...]
    is_prefix: bool = False
    question: str = QUESTION
    first_turn: tuple[str, str] | None = None
    is_after_forgetting: bool = False


_HELD = ("hit", "joined", None)
NEW = "new picture"
#: In this order: each but the first is about a picture that the ones before it were about.
CASES = (
    Case(NEW, ("miss",), ("encoder",)),
    Case("the same again", _HELD, ("prefix_cache",), is_prefix=True),
    Case("another question on it", _HELD, ("prefix_cache", "engine"), is_prefix=True, question=OTHER_QUESTION),
    Case("other text before it", _HELD, ("engine",), first_turn=FIRST_TURN),
    Case("held by the encoder alone", ("hit",), ("encoder",), is_after_forgetting=True),
)


@dataclass(frozen=True)
class Subject:
    """A server under load.

    Attributes:
        forget: has the engine forget prefixes and embeddings; None where that cannot be asked for.
        read_traffic: bytes on the wire so far; None where nobody counts them.
    """

    target: Target
    forget: Callable[[], None] | None = None
    read_traffic: Callable[[], Traffic] | None = None


def objection(case: Case, report: dict[str, Any], usage: dict[str, Any]) -> str | None:
    """Why an answer of Triptych is not of this case; None when it is.

    Args:
        report: on the picture, from the answer's extension.
        usage: of the answer, as OpenAI's.
    """
    cached = usage["prompt_tokens_details"]["cached_media_tokens"]
    if report["encoder_cache"] not in case.encoder_cache:
        return f"the encoder says {report['encoder_cache']}, not {' or '.join(map(str, case.encoder_cache))}"
    if report["source"] not in case.sources:
        return f"its embeddings come from {report['source']}, not {' or '.join(case.sources)}"
    if bool(cached) != case.is_prefix:
        return f"{cached} of its {report['num_tokens']} tokens were in the prefix cache"
    return None


async def ask_in_all_ways(subject: Subject, picture: Picture, timeout_s: float) -> list[dict[str, Any]]:
    """One sample per case that the server knows. Raises ChildError where Triptych shows another case than it should."""
    samples = []
    for case in CASES:
        if case.is_after_forgetting:
            if subject.forget is None:
                continue
            await asyncio.to_thread(subject.forget)
        samples.append(await _sample(subject, case, picture, timeout_s))
    return samples


async def _sample(subject: Subject, case: Case, picture: Picture, timeout_s: float) -> dict[str, Any]:
    body = orjson.dumps(chat(subject.target, about(picture, case.question), PICTURE_TOKENS, case.first_turn))
    before = await _traffic(subject)
    sent_s = time.perf_counter()
    answer = await _ask(subject.target, body, timeout_s)
    sample = {"case": case.name, "ttft_ms": 1e3 * (answer.pieces_s[0] - sent_s), "file_bytes": len(picture.file)}
    after = await _traffic(subject)
    if before is not None and after is not None:
        sample.update(dataclasses.asdict(after.since(before)))
    if subject.forget is None:
        return sample
    [report] = (answer.extension or {})["media"]
    objected = objection(case, report, answer.usage or {})
    if objected is not None:
        raise ChildError(f"{subject.target.name}, {case.name}: {objected}")
    del report["key"]
    return {**sample, "report": report}


async def _traffic(subject: Subject) -> Traffic | None:
    return await asyncio.to_thread(subject.read_traffic) if subject.read_traffic is not None else None


async def _ask(target: Target, body: bytes, timeout_s: float) -> Answer:
    """A whole answer. Raises one of load.FAILURES, TimeoutError among them."""
    async with asyncio.timeout(timeout_s):
        answer = await post(target.url, "/v1/chat/completions", body)
    if not answer.pieces_s or answer.usage is None:
        raise RequestFailedError("no text, or no usage")
    return answer


@dataclass(frozen=True)
class Flood:
    """Text streams beside new pictures.

    Attributes:
        alone, beside: the streams before the pictures came, and from their arrival, all at once, to the last answer about one.
        ttft_p50_ms, ttft_max_ms: of the answers about pictures.
    """

    alone: figures.Window
    beside: figures.Window
    num_pictures: int
    num_failed: int
    failures: dict[str, int]
    ttft_p50_ms: float | None
    ttft_max_ms: float | None


async def put_flood(target: Target, pictures: Sequence[Picture], *, alone_s: float, stream_tokens: int, timeout_s: float) -> Flood:
    """Four text streams, first alone and then with all these pictures at once.

    Args:
        alone_s: how long they are watched alone.
        stream_tokens: of each answer in the streams.
        timeout_s: of each request. A picture's that fails is counted, a stream's raises an ExceptionGroup of load.FAILURES.
    """
    bodies = [orjson.dumps(chat(target, about(picture, QUESTION), PICTURE_TOKENS)) for picture in pictures]
    prompts = Prompts(_PROMPT_WORDS, int.from_bytes(os.urandom(4), "big"))
    stop = asyncio.Event()

    async def stream() -> list[figures.Answer]:
        answers: list[figures.Answer] = []
        while not stop.is_set():
            body = orjson.dumps(chat(target, prompts.take(1)[0], stream_tokens))
            sent_s = time.perf_counter()
            answer = await _ask(target, body, timeout_s)
            answers.append(figures.Answer(sent_s, answer.pieces_s, (answer.usage or {})["completion_tokens"]))
        return answers

    async with asyncio.TaskGroup() as group:
        streams = [group.create_task(stream()) for _ in range(NUM_STREAMS)]
        try:
            await asyncio.sleep(_SETTLE_S)
            alone_from_s = time.perf_counter()
            await asyncio.sleep(alone_s)
            from_s = time.perf_counter()
            outcomes = await asyncio.gather(*(_ask(target, body, timeout_s) for body in bodies), return_exceptions=True)
            to_s = time.perf_counter()
        finally:
            # Each goes on to the end of its answer, so its last gap in the window has an end.
            stop.set()
    lines = [task.result() for task in streams]
    ttfts = [1e3 * (outcome.pieces_s[0] - from_s) for outcome in outcomes if isinstance(outcome, Answer)]
    failures = [_known(outcome) for outcome in outcomes if isinstance(outcome, BaseException)]
    return Flood(
        alone=figures.in_window(lines, alone_from_s, from_s),
        beside=figures.in_window(lines, from_s, to_s),
        num_pictures=len(pictures),
        num_failed=len(failures),
        failures=dict(Counter(failures).most_common(figures.MAX_REASONS)),
        ttft_p50_ms=figures.percentile(ttfts, 0.5),
        ttft_max_ms=figures.percentile(ttfts, 1.0),
    )


def _known(error: BaseException) -> str:
    """Why a picture failed; raises what no server can be blamed for."""
    if not isinstance(error, FAILURES):
        raise error
    return reason(error)
