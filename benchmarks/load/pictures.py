"""The two loads of benchmarks.encoder: one picture asked about in several ways, and text streams beside a flood of new ones."""

from __future__ import annotations

import asyncio
import io
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image
from triptych_cli.load.client import FAILURES, reason, send
from triptych_cli.load.figures import Answer, count_reasons, in_window, percentile_ms
from triptych_cli.load.requests import Prompts, Request, Target, chat

from benchmarks.errors import BenchmarkError

NUM_STREAMS = 4
QUESTION = "What is in this image?"
OTHER_QUESTION = "Which colours do you see, and where are they?"
#: A turn before the picture's: nothing that was computed behind another beginning can be used again. Text of the same message would
#: not do: there are templates that put its pictures first.
FIRST_TURN = ("I have a picture for you.", "Show me.")
#: Of each answer about a picture; the first one's time is what counts.
PICTURE_TOKENS = 8
_PROMPT_WORDS = 16
#: Pixels of noise are this large, in pixels of the picture: a JPEG of it is about as large as a photograph's.
_GRAIN = 8
_JPEG_QUALITY = 85
#: Until the streams have all begun, in seconds.
_SETTLE_S = 3.0


@dataclass(frozen=True)
class Case:
    """A way to ask about a picture, and what Triptych must say about it: else it is not the case that it claims to be.

    Attributes:
        encoder_cache: where the encoder may have found it; None is no answer from it before the first token.
        sources: how its embeddings may have come to the engine.
        is_prefix: whether its KV was in the prefix cache.
        is_after_reset: the engine has forgotten all prefixes and embeddings before; not possible with every server.
    """

    name: str
    encoder_cache: tuple[str | None, ...]
    sources: tuple[str, ...]
    is_prefix: bool = False
    question: str = QUESTION
    first_turn: tuple[str, str] | None = None
    is_after_reset: bool = False


_HELD = ("hit", "joined", None)
NEW = "new picture"
#: In this order: each but the first is about a picture that the ones before it were about.
CASES = (
    Case(NEW, ("miss",), ("encoder",)),
    Case("the same again", _HELD, ("prefix_cache",), is_prefix=True),
    Case("another question on it", _HELD, ("prefix_cache", "engine"), is_prefix=True, question=OTHER_QUESTION),
    Case("other text before it", _HELD, ("engine",), first_turn=FIRST_TURN),
    Case("held by the encoder alone", ("hit",), ("encoder",), is_after_reset=True),
)


@dataclass(frozen=True)
class Subject:
    """A server under load.

    Attributes:
        reset_caches: has the engine forget prefixes and embeddings; None where that cannot be asked for.
    """

    target: Target
    reset_caches: Callable[[], None] | None = None


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


async def ask_in_all_ways(subject: Subject, picture: bytes, timeout_s: float) -> list[dict[str, Any]]:
    """One sample per case that the server knows. Raises BenchmarkError where Triptych shows another case than it should."""
    samples = []
    for case in CASES:
        if case.is_after_reset:
            if subject.reset_caches is None:
                continue
            await asyncio.to_thread(subject.reset_caches)
        samples.append(await _sample(subject, case, picture, timeout_s))
    return samples


async def _sample(subject: Subject, case: Case, picture: bytes, timeout_s: float) -> dict[str, Any]:
    async with asyncio.timeout(timeout_s):
        answer = await send(subject.target, chat(case.question, PICTURE_TOKENS, [picture], case.first_turn))
    sample = {"case": case.name, "ttft_ms": 1e3 * answer.ttft_s, "file_bytes": len(picture)}
    if subject.reset_caches is None:
        return sample
    [report] = answer.extension["media"]
    objected = objection(case, report, answer.usage)
    if objected is not None:
        raise BenchmarkError(f"{subject.target.name}, {case.name}: {objected}")
    del report["key"]
    return {**sample, "report": report}


async def put_flood(
    target: Target, pictures: Sequence[bytes], *, alone_s: float, stream_tokens: int, timeout_s: float
) -> dict[str, Any]:
    """Four text streams, first alone and then with all these pictures at once.

    Args:
        alone_s: how long they are watched alone.
        stream_tokens: of each answer in the streams.
        timeout_s: of each request. A picture's that fails is counted, a stream's raises an ExceptionGroup of client.FAILURES.

    Returns:
        `alone` and `beside`, windows of the streams before the pictures came, and from their arrival, all at once, to the last
        answer about one; beside these what became of the pictures.
    """
    requests = [chat(QUESTION, PICTURE_TOKENS, [picture]) for picture in pictures]
    prompts = Prompts(_PROMPT_WORDS, int.from_bytes(os.urandom(4), "big"))
    stop = asyncio.Event()

    async def ask(request: Request) -> Answer:
        async with asyncio.timeout(timeout_s):
            return await send(target, request)

    async def stream() -> list[Answer]:
        answers: list[Answer] = []
        while not stop.is_set():
            answers.append(await ask(chat(prompts.take(1)[0], stream_tokens)))
        return answers

    async with asyncio.TaskGroup() as group:
        streams = [group.create_task(stream()) for _ in range(NUM_STREAMS)]
        try:
            await asyncio.sleep(_SETTLE_S)
            alone_from_s = time.perf_counter()
            await asyncio.sleep(alone_s)
            from_s = time.perf_counter()
            outcomes = await asyncio.gather(*map(ask, requests), return_exceptions=True)
            to_s = time.perf_counter()
        finally:
            # Each goes on to the end of its answer, so its last gap in the window has an end.
            stop.set()
    lines = [task.result() for task in streams]
    ttfts = [outcome.pieces_s[0] - from_s for outcome in outcomes if isinstance(outcome, Answer)]
    failures = [_known(outcome) for outcome in outcomes if isinstance(outcome, BaseException)]
    return {
        "alone": in_window(lines, alone_from_s, from_s),
        "beside": in_window(lines, from_s, to_s),
        "num_pictures": len(pictures),
        "num_failed": len(failures),
        "failures": count_reasons(failures),
        "ttft_p50_ms": percentile_ms(ttfts, 0.5),
        "ttft_max_ms": percentile_ms(ttfts, 1.0),
    }


def _known(error: BaseException) -> str:
    """Why a picture failed; raises what no server can be blamed for."""
    if not isinstance(error, FAILURES):
        raise error
    return reason(error)


def new_picture(edge: int) -> bytes:
    """A JPEG file of smoothed random noise, so many pixels wide and high."""
    cells = max(1, edge // _GRAIN)
    noise = Image.frombytes("RGB", (cells, cells), os.urandom(3 * cells * cells))
    file = io.BytesIO()
    noise.resize((edge, edge)).save(file, "JPEG", quality=_JPEG_QUALITY)
    return file.getvalue()
