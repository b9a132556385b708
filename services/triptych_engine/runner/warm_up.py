"""Measures the cost of steps at start. This also prepares kernels, buffers and threads for the first requests."""

from __future__ import annotations

import logging
import time
from typing import Protocol

from triptych_engine.scheduling.output import NewSequence, SchedulerOutput, StepResult
from triptych_engine.scheduling.pacer import StepCosts
from triptych_engine.scheduling.request import SamplingParams

log = logging.getLogger(__name__)
#: Number of tokens, or of sequences, in the measured steps.
_MEASURED_SIZE = 64
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
    """

    def __init__(self, runner: StepRunner, block_size: int, max_tokens: int, max_num_seqs: int) -> None:
        self._runner, self._block_size = runner, block_size
        self._max_tokens, self._max_num_seqs = max_tokens, max_num_seqs

    def run(self, *, largest: bool) -> StepCosts:
        """Run a prefill, the largest possible one or one of the measured size. Then measure the cost of steps."""
        started = time.monotonic()
        num_tokens = min(self._max_tokens, _MEASURED_SIZE)
        self._time_prefill(self._max_tokens if largest else num_tokens)
        costs = self._measure(num_tokens, min(self._max_num_seqs, _MEASURED_SIZE))
        log.info("warmed up in %.1f s; a step takes %.1f ms, %.2f more per decoding sequence, %.2f per prompt token",
                 time.monotonic() - started, costs.fixed_s * 1e3, costs.decode_s * 1e3, costs.prompt_token_s * 1e3)  # fmt: skip
        return costs

    def _measure(self, num_tokens: int, num_seqs: int) -> StepCosts:
        # Other services may be starting on the same cores, so the faster of two runs is closer to the true cost.
        one_s, several_s, prompt_s = (
            min(time_step(size) for _ in range(2))
            for time_step, size in ((self._time_decode, 1), (self._time_decode, num_seqs), (self._time_prefill, num_tokens))
        )
        decode_s = max(0.0, several_s - one_s) / max(1, num_seqs - 1)
        prompt_token_s = max(0.0, prompt_s - one_s) / max(1, num_tokens - 1)
        return StepCosts(max(one_s - decode_s, 1e-6), decode_s, prompt_token_s)

    def _time_prefill(self, num_tokens: int) -> float:
        """Seconds of a step with one prompt in it."""
        blocks = list(range(-(-(num_tokens + 1) // self._block_size)))
        return self._time([NewSequence("warm-up", [0] * num_tokens, num_tokens, 0, blocks, _SAMPLING)], num_tokens)

    def _time_decode(self, num_seqs: int) -> float:
        """Seconds of a step in which `num_seqs` sequences compute one token each."""
        return self._time([NewSequence(f"warm-up-{i}", [0], 1, 0, [i], _SAMPLING) for i in range(num_seqs)], 1)

    def _time(self, sequences: list[NewSequence], num_tokens: int) -> float:
        ids = [sequence.request_id for sequence in sequences]
        started = time.perf_counter()
        self._runner.execute(SchedulerOutput(new=sequences, num_scheduled_tokens=dict.fromkeys(ids, num_tokens)))
        elapsed_s = time.perf_counter() - started
        self._runner.execute(SchedulerOutput(dropped=ids))
        return elapsed_s
