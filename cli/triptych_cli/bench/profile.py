"""Puts one load after the other on a server."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from triptych_cli.bench.figures import Level, level_of
from triptych_cli.errors import CommandError
from triptych_cli.load.client import FAILURES, Outcome, answer_to, closed_loop, open_loop, reason
from triptych_cli.load.figures import Answer
from triptych_cli.load.requests import Prompts, Request, Target, chat, completion

#: Requests of a level, unless the user says how many: so many per stream, or seconds of a rate, and at least so many.
_PER_STREAM, _RATE_S, _LEAST = 4, 20.0, 8
#: Words of the two requests that tell how many tokens a word has.
_FEW_WORDS, _MORE_WORDS = 8, 72
_PROBE_TOKENS = 4
#: Tokens of a word, where the server tells no usage: what English has.
_TOKENS_PER_WORD = 1.3
#: Longest time for one answer, in seconds.
_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Plan:
    """What is measured.

    Attributes:
        concurrency, rates: levels; one of them is empty.
        num_prompts: requests of a level; None for a number that depends on it.
        input_len, output_len: tokens of a request and of its answer.
        is_chat: ask for chats, else for completions.
        ignore_eos: let the server ignore end tokens, so that answers have their whole length.
        limits: see `figures.keeps`.
    """

    concurrency: Sequence[int]
    rates: Sequence[float]
    num_prompts: int | None
    input_len: int
    output_len: int
    is_chat: bool
    ignore_eos: bool
    limits: Mapping[str, float]


class Profiler:
    """Measures a server. All methods belong to one event loop.

    Args:
        report: called with what happens now.
    """

    def __init__(self, target: Target, plan: Plan, report: Callable[[str], None]) -> None:
        self._target, self._plan, self._report = target, plan, report
        #: Levels that were measured. The last one may have been interrupted.
        self.levels: list[Level] = []
        self._num_words = 1
        self._seed = int.from_bytes(os.urandom(8), "big")

    async def run(self) -> bool:
        """Measure all levels. Returns False if it was interrupted: cancelled, which ends the level.

        Raises:
            CommandError: the server does not answer a single request.
        """
        try:
            await self._find_length()
            for concurrency in self._plan.concurrency:
                await self._measure(concurrency, None)
            for rate in self._plan.rates:
                await self._measure(None, rate)
        except asyncio.CancelledError:
            return False
        return True

    async def _find_length(self) -> None:
        """Find how many words make a prompt of the length that was asked for, with two small requests. They warm the server up."""
        self._report("asking how many tokens a word has")
        counts = []
        for num_words in (_FEW_WORDS, _MORE_WORDS):
            [request] = self._requests(1, num_words, _PROBE_TOKENS)
            try:
                counts.append((await self._ask(request)).num_prompt_tokens)
            except FAILURES as error:
                raise CommandError(f"{self._target.url} does not answer: {reason(error)}") from error
        slope = (counts[1] - counts[0]) / (_MORE_WORDS - _FEW_WORDS)
        if slope <= 0:
            slope, counts[0] = _TOKENS_PER_WORD, 0
        self._num_words = max(1, round((self._plan.input_len - counts[0]) / slope) + (_FEW_WORDS if counts[0] else 0))

    async def _measure(self, concurrency: int | None, rate: float | None) -> None:
        plan, outcome = self._plan, Outcome()
        number = plan.num_prompts or max(_LEAST, _PER_STREAM * concurrency if concurrency else round(_RATE_S * (rate or 0)))
        name = f"concurrency {concurrency}" if concurrency else f"{rate:g} requests/s"
        requests = self._requests(number, self._num_words, plan.output_len)

        async def ask(request: Request) -> None:
            await outcome.add(self._ask(request))
            self._report(f"{name}: {len(outcome.answers) + len(outcome.failures)} of {number}")

        self._report(f"{name}: 0 of {number}")
        loop: Coroutine[Any, Any, None]
        loop = closed_loop(requests, concurrency, ask) if concurrency else open_loop(requests, rate or 0, ask)
        is_whole, start_s = False, time.perf_counter()
        try:
            await loop
            is_whole = True
        finally:
            elapsed_s = time.perf_counter() - start_s
            if is_whole or outcome.answers or outcome.failures:
                load = {"concurrency": concurrency, "rate": rate, "is_whole": is_whole, "limits": plan.limits}
                self.levels.append(level_of(outcome.answers, outcome.failures, elapsed_s, **load))  # type: ignore[arg-type]

    def _requests(self, count: int, num_words: int, max_tokens: int) -> list[Request]:
        self._seed += 1  # no prompt begins as another one, or as one of an earlier run
        make = chat if self._plan.is_chat else completion
        prompts = Prompts(num_words, self._seed).take(count)
        return [make(prompt, max_tokens, ignore_eos=self._plan.ignore_eos) for prompt in prompts]

    async def _ask(self, request: Request) -> Answer:
        async with asyncio.timeout(_TIMEOUT_S):
            return await answer_to(self._target, request)
