"""The costs of steps, and an estimate of them that follows the durations of the steps so far.

A step takes a fixed time, a time per decoding sequence and a time per prompt token. A Kalman filter estimates the three together:
it is the method of recursive least squares, for unknowns that drift. It assumes the following:

- All costs may change by the same factor, for example when another program starts to use the cores. This is the usual change.
- Each cost may also change alone, but slowly, for example because contexts get longer.
- A step that only decodes shows nothing about prompts. The duration of a step with both is divided by how uncertain the costs are.
- A step may take any time because the process was suspended. So a single step at most doubles the costs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

#: Relative standard deviations: of a duration, of the change that a step makes to all costs together, and to each alone.
_NOISE, _COMMON_DRIFT, _OWN_DRIFT = 0.2, 0.1, 0.03
_COMMON, _DRIFT = _COMMON_DRIFT**2, _COMMON_DRIFT**2 + _OWN_DRIFT**2
#: A duration beyond this multiple of the expected one is a surprise. The costs then count as this many times as uncertain.
_MAX_SURPRISE, _DOUBT = 2.0, 1.4
#: A decoding sequence computes the layers for a token, its logits and its sampling. A prompt token needs only the layers, and its
#: measured cost was a third of a decoding sequence's. An eighth leaves room for models with a large vocabulary.
_LEAST_OF_DECODE = 1 / 8
#: A step with one token reads all weights. No CPU multiplies weights a thousand times as fast as it reads them.
_LEAST_OF_STEP = 1 / 1024
#: Number of prompt tokens or sequences among which the uncertainty of a whole step is divided at the start.
_START_SIZE = 64
_MIN_S, _MAX_S = 1e-4, 10.0


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Duration of a step, in seconds: fixed_s, plus decode_s per decoding sequence, plus prompt_token_s per prompt token."""

    fixed_s: float
    decode_s: float
    prompt_token_s: float

    def step_s(self, num_decoding: int, num_prompt_tokens: int = 0) -> float:
        """A step's duration."""
        return self.fixed_s + num_decoding * self.decode_s + num_prompt_tokens * self.prompt_token_s

    def times(self, factor: float) -> StepCosts:
        """The costs on a machine that is slower by a factor."""
        return StepCosts(factor * self.fixed_s, factor * self.decode_s, factor * self.prompt_token_s)

    def plausible(self) -> StepCosts:
        """The nearest costs that are physically possible. The time of a step and of a prompt token is positive and finite."""
        fixed_s, decode_s = _between(self.fixed_s, _MIN_S, _MAX_S), _between(self.decode_s, 0.0, _MAX_S)
        if decode_s > fixed_s:  # a sequence more only adds to what the first one needs
            fixed_s = decode_s = (fixed_s + decode_s) / 2
        one_s = fixed_s + decode_s
        return StepCosts(fixed_s, decode_s, _between(self.prompt_token_s, one_s * _LEAST_OF_STEP, one_s))


def _between(seconds: float, least_s: float, most_s: float) -> float:
    return least_s if math.isnan(seconds) else min(max(seconds, least_s), most_s)


class CostEstimate:
    """Costs that follow the durations of steps.

    Args:
        start: measured before. It may be wrong by any factor.
    """

    def __init__(self, start: StepCosts) -> None:
        costs = start.plausible()
        least_s = costs.decode_s * _LEAST_OF_DECODE
        self.costs = StepCosts(costs.fixed_s, costs.decode_s, max(costs.prompt_token_s, least_s))
        share_s = costs.step_s(1) / _START_SIZE
        spread = (costs.fixed_s, max(costs.decode_s, share_s), max(costs.prompt_token_s, share_s))
        fixed, decode, prompt = (one_s**2 for one_s in spread)
        #: Of the costs, in seconds squared: of fixed_s with itself, decode_s and prompt_token_s; of decode_s with itself and
        #: prompt_token_s; of prompt_token_s.
        self._covariance = (fixed, 0.0, 0.0, decode, 0.0, prompt)
        self._was_surprised = False

    def observe(self, num_decoding: int, num_prompt_tokens: int, step_s: float) -> None:
        """Correct the costs with the duration of a step, in seconds; it must be positive and finite."""
        n, m, known = num_decoding, num_prompt_tokens, self.costs
        # No part of a step takes longer than the whole step. So costs that are far too high fall at once.
        fixed_s, decode_s = min(known.fixed_s, step_s), min(known.decode_s, step_s / max(1, n))
        prompt_s = min(known.prompt_token_s, step_s / max(1, m))
        expected_s = fixed_s + n * decode_s + m * prompt_s
        if step_s > _MAX_SURPRISE * expected_s:
            self._raise(step_s / expected_s)
            return
        self._was_surprised = False
        # Written out: this runs after every step, and matrices of three rows take several times as long.
        ff, fd, fp, dd, dp, pp = self._covariance
        ff, dd, pp = ff + _DRIFT * fixed_s**2, dd + _DRIFT * decode_s**2, pp + _DRIFT * prompt_s**2
        fd, fp, dp = fd + _COMMON * fixed_s * decode_s, fp + _COMMON * fixed_s * prompt_s, dp + _COMMON * decode_s * prompt_s
        of_fixed, of_decode, of_prompt = ff + n * fd + m * fp, fd + n * dd + m * dp, fp + n * dp + m * pp
        variance = of_fixed + n * of_decode + m * of_prompt + (_NOISE * expected_s) ** 2
        error = (step_s - expected_s) / variance
        corrected = StepCosts(fixed_s + of_fixed * error, decode_s + of_decode * error, prompt_s + of_prompt * error)
        self.costs = corrected.plausible()
        self._covariance = (
            ff - of_fixed * of_fixed / variance,
            fd - of_fixed * of_decode / variance,
            fp - of_fixed * of_prompt / variance,
            dd - of_decode * of_decode / variance,
            dp - of_decode * of_prompt / variance,
            pp - of_prompt * of_prompt / variance,
        )

    def _raise(self, surprise: float) -> None:
        """Raise all costs after a step that took this many times as long as expected: to the double, or by the whole factor if the
        step before it took too long as well. Costs that are too low stall streams. Costs that are too high are soon corrected."""
        factor = surprise if self._was_surprised else _MAX_SURPRISE
        self._was_surprised = True
        self.costs = self.costs.times(factor).plausible()
        ff, fd, fp, dd, dp, pp = self._covariance
        doubt = (_DOUBT * factor) ** 2
        self._covariance = (doubt * ff, doubt * fd, doubt * fp, doubt * dd, doubt * dp, doubt * pp)
