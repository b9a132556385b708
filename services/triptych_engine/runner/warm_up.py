"""Measures the cost of steps at start. This also prepares kernels, buffers and threads for the first requests."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from statistics import median
from typing import Protocol

from triptych_engine.scheduling.output import NewSequence, SchedulerOutput, StepResult
from triptych_engine.scheduling.request import SamplingParams
from triptych_engine.scheduling.step_costs import StepCosts

log = logging.getLogger(__name__)
#: Number of tokens, or of sequences, in the measured steps.
_MEASURED_SIZE = 64
#: A longer prompt is measured until a step with it takes this many times as long as a step with one token. In shorter prompts, the
#: cost of a token is lost in the noise.
_CLEAR_RATIO = 3.0
_LONGEST_PROMPT = 256
#: The three steps are measured in turn, so many times and at most for so many seconds, until their durations are stable.
_LEAST_ROUNDS, _MOST_ROUNDS, _MAX_S = 3, 9, 1.0
#: Durations are stable when at least half of them are within this fraction of the median.
_STABLE_SPREAD = 0.1
_SAMPLING = SamplingParams(max_tokens=1, temperature=0.0)


class StepRunner(Protocol):
    """Computes a step and waits for it."""

    def execute(self, scheduled: SchedulerOutput) -> StepResult: ...


class WarmUp:
    """Runs synthetic steps.

    Args:
        runner: a runner without sequences; its KV blocks from 0 on are used.
        max_tokens: length of the longest prompt that it can compute.
        max_num_seqs: maximum number of sequences, with one block each.
        clock: seconds.
        agree: of what the ranks that compute a step together have measured, the number that all go by.
    """

    def __init__(
        self,
        runner: StepRunner,
        block_size: int,
        max_tokens: int,
        max_num_seqs: int,
        clock: Callable[[], float] = time.perf_counter,
        agree: Callable[[float], float] = lambda number: number,
    ) -> None:
        self._runner, self._block_size, self._clock, self._agree = runner, block_size, clock, agree
        self._max_tokens, self._max_num_seqs = max_tokens, max_num_seqs

    def run(self, *, largest: bool) -> StepCosts:
        """Run a prefill, the largest possible one or one of the measured size. Then measure the cost of steps."""
        started = self._clock()
        self._time_prefill(self._max_tokens if largest else min(self._max_tokens, _MEASURED_SIZE))
        if largest:  # a GPU's kernels differ with long contexts
            self._time_last_token(self._max_tokens)
        costs = self._measure(min(self._max_num_seqs, _MEASURED_SIZE))
        log.info("warmed up in %.1f s; a step takes %.1f ms, %.2f more per decoding sequence, %.2f per prompt token",
                 self._clock() - started, costs.fixed_s * 1e3, costs.decode_s * 1e3, costs.prompt_token_s * 1e3)  # fmt: skip
        return costs

    def _measure(self, num_seqs: int) -> StepCosts:
        """Measure the three steps in turn. Another service that starts meanwhile then slows all three down, not one of them."""
        num_tokens = self._clear_prompt()
        ended_s = self._clock() + _MAX_S
        rounds: list[tuple[float, float, float]] = []
        while len(rounds) < _MOST_ROUNDS:
            rounds.append((self._time_decode(1), self._time_decode(num_seqs), self._time_prefill(num_tokens)))
            if len(rounds) >= _LEAST_ROUNDS and all(map(_is_stable, zip(*rounds, strict=True))):
                break
            if len(rounds) > 1 and self._agree(self._clock() - ended_s) > 0:
                break
        one_s, several_s, prompt_s = (median(durations) for durations in zip(*rounds, strict=True))
        decode_s = (several_s - one_s) / max(1, num_seqs - 1)
        return StepCosts(one_s - max(0.0, decode_s), decode_s, (prompt_s - one_s) / max(1, num_tokens - 1)).plausible()

    def _clear_prompt(self) -> int:
        """Length of the prompt to measure. Also runs each of the steps once, which may take longer than later ones."""
        self._time_decode(min(self._max_num_seqs, _MEASURED_SIZE))
        one_s = self._time_decode(1)
        num_tokens = min(self._max_tokens, _MEASURED_SIZE)
        longest = min(self._max_tokens, _LONGEST_PROMPT)
        while self._time_prefill(num_tokens) < _CLEAR_RATIO * one_s and num_tokens < longest:
            num_tokens = min(longest, 2 * num_tokens)
        return num_tokens

    def _time_prefill(self, num_tokens: int) -> float:
        """Seconds of a step with one prompt in it."""
        blocks = list(range(-(-(num_tokens + 1) // self._block_size)))
        return self._time([NewSequence("warm-up", [0] * num_tokens, num_tokens, 0, blocks, _SAMPLING)], num_tokens)

    def _time_last_token(self, num_tokens: int) -> float:
        """Seconds of a step that computes the last token of a prompt, whose other tokens were computed in the same blocks."""
        blocks = list(range(-(-(num_tokens + 1) // self._block_size)))
        return self._time([NewSequence("warm-up", [0] * num_tokens, num_tokens, num_tokens - 1, blocks, _SAMPLING)], 1)

    def _time_decode(self, num_seqs: int) -> float:
        """Seconds of a step in which `num_seqs` sequences compute one token each."""
        return self._time([NewSequence(f"warm-up-{i}", [0], 1, 0, [i], _SAMPLING) for i in range(num_seqs)], 1)

    def _time(self, sequences: list[NewSequence], num_tokens: int) -> float:
        """Seconds of a step of sequences that were admitted before it, as those that decode were."""
        ids = [sequence.request_id for sequence in sequences]
        self._runner.execute(SchedulerOutput(new=sequences))
        started_s = self._clock()
        self._runner.execute(SchedulerOutput(num_scheduled_tokens=dict.fromkeys(ids, num_tokens)))
        elapsed_s = self._agree(self._clock() - started_s)
        self._runner.execute(SchedulerOutput(dropped=ids))
        return elapsed_s


def _is_stable(durations: tuple[float, ...]) -> bool:
    """Whether the durations so far agree on their median."""
    middle_s = median(durations)
    return median(abs(one_s - middle_s) for one_s in durations) <= _STABLE_SPREAD * middle_s
