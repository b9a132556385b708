"""What the frontend counts of its calls. Use it on the event loop only."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

from triptych.errors import InternalError, TriptychError
from triptych.v1 import common_pb2
from triptych_common.telemetry.histogram import GAP_SECONDS, SECONDS, Histograms


class CallStatistics:
    """Counts of all calls since the start, by task: chat, complete, embed, score, classify. Times are in seconds."""

    def __init__(self) -> None:
        #: From a call's arrival to its end, and to its first token.
        self.call = Histograms(SECONDS)
        self.first_token = Histograms(SECONDS)
        #: Between two outputs of a choice that brought tokens.
        self.gaps = Histograms(GAP_SECONDS)
        #: The wait in the engine, as the engine reports it; and the work before the engine.
        self.queue = Histograms(SECONDS)
        self.preprocess = Histograms(SECONDS)
        #: Ended calls by task and outcome.
        self.num_calls: Counter[tuple[str, str]] = Counter()
        self.num_prompt_tokens: Counter[str] = Counter()
        self.num_cached_tokens: Counter[str] = Counter()
        self.num_completion_tokens: Counter[str] = Counter()


class CallMeter:
    """Counts one call, from the moment at which it is made."""

    def __init__(self, statistics: CallStatistics, task: str) -> None:
        self._statistics, self._task = statistics, task
        self._gaps = statistics.gaps[task]
        self._start_s = time.perf_counter()
        #: Index of a choice -> when its newest token came.
        self._last_s: dict[int, float] = {}
        self._has_ended = False

    def preprocessed(self, seconds: float | None = None) -> None:
        """The prompt is ready.

        Args:
            seconds: the time that this took; by default since the meter was made.
        """
        elapsed_s = time.perf_counter() - self._start_s
        self._statistics.preprocess[self._task].observe(elapsed_s if seconds is None else seconds)

    def token(self, index: int) -> None:
        """A choice got a token, or several at once."""
        now, last_s = time.perf_counter(), self._last_s
        if index in last_s:
            self._gaps.observe(now - last_s[index])
        elif not last_s:
            self._statistics.first_token[self._task].observe(now - self._start_s)
        last_s[index] = now

    def used(self, usage: common_pb2.Usage) -> None:
        """Count the tokens of the call."""
        task, statistics = self._task, self._statistics
        statistics.num_prompt_tokens[task] += usage.prompt_tokens
        statistics.num_cached_tokens[task] += usage.cached_tokens
        statistics.num_completion_tokens[task] += usage.completion_tokens

    def ended(self, outcome: str, queue_s: float | None = None) -> None:
        """The call has ended. Only the first call counts.

        Args:
            outcome: a finish reason, ok, cancelled, or the reason of an error.
            queue_s: the wait in the engine, if the engine reported it.
        """
        if self._has_ended:
            return
        self._has_ended, task, statistics = True, self._task, self._statistics
        statistics.num_calls[task, outcome] += 1
        statistics.call[task].observe(time.perf_counter() - self._start_s)
        if queue_s is not None:
            statistics.queue[task].observe(queue_s)

    def failed(self, error: BaseException) -> None:
        """The call has ended with an error, or was cancelled."""
        if isinstance(error, TriptychError):
            self.ended(error.reason or "UNKNOWN")
        else:
            self.ended("cancelled" if isinstance(error, asyncio.CancelledError) else InternalError.reason)
