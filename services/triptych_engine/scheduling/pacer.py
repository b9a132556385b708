"""Policy: how many prompt tokens a step may compute while other requests decode.

A long prompt that is computed in one step stalls all decoding requests. If it is cut into small chunks, the prompt itself takes
long. Sarathi-Serve (Agrawal et al., 2024) therefore limits the tokens of a step, with a limit that must be tuned for each model and
machine. On CPUs, the duration of a step is limited instead. The cost of a token is measured at start. It can be wrong then or
later, because other processes use the cores or contexts get longer, so the duration of each step corrects it (step_costs.py).

The estimate alone does not decide. Prompts get at most twice the tokens per second that the last such step reached. So even
if all costs were wrong, a step with prompts would take at most two times the wanted duration longer than one without.
"""

from __future__ import annotations

import math
import sys
from collections import deque

from triptych_engine.scheduling.step_costs import CostEstimate, StepCosts

#: Prompts get at least this share of a step. A share by number of requests would leave a prompt among many streams almost nothing.
_LEAST_SHARE = 0.5
#: Prompts may always add this fraction of the decoding time, even if decoding alone takes longer than max_step_s.
_LEAST_ADDITION = 0.5
#: Prompts may get this multiple of the tokens per second that the last step with more than a few prompt tokens reached.
_MAX_SPEED_UP = 2
#: Prompt tokens of the first step with prompts: no more than the warm-up has computed in a step.
_FIRST_TOKENS = 64
#: One in so many steps has the least number of prompt tokens; if that is the usual one, it has more, or a single one where steps
#: are too long already. If all steps had the same number, their durations would not show what is the cost of decoding and what of
#: prompts. The first is the third step with prompts.
_PROBE_INTERVAL, _FIRST_PROBE = 12, 3
#: Number of recent steps with few prompt tokens that show how long decoding takes. Some are long for another reason.
_NUM_SMALL_STEPS = 3
#: No step is shorter. A clock that jumps can measure anything.
_SHORTEST_S = 1e-6

#: Number of steps, after a time without decoding, in which several prompts get a larger share and a step may take longer: twice as
#: long for three prompts, up to five times for nine. So requests that arrive together start together. Measured with 64 short ones
#: on two cores: all start within these steps, and the last one starts in 0.7 of the time. Streams that have begun wait meanwhile,
#: so few prompts make a step only a little longer, and a single one does not. Steps are counted, not a stream's tokens: with short
#: outputs, no stream has enough.
BEGINNING_STEPS = 12
_BEGINNING_STRETCH = 5


class StepPacer:
    """Divides a step's time between decoding requests and prompts.

    Args:
        costs: measured on this machine.
        max_step_s: prompts may not make a step longer than this while others decode; see BEGINNING_STEPS for the exception. They
            get all tokens that there are, if it is infinite.
        min_prompt_tokens: prompts get at least this many tokens per step, even on a slow machine.
    """

    def __init__(self, costs: StepCosts, max_step_s: float, min_prompt_tokens: int = 4) -> None:
        # Steps during which an encoder may use the same cores are estimated separately.
        self._regimes = {encoding: _Regime(costs, max_step_s, min_prompt_tokens) for encoding in (False, True)}

    def prompt_tokens(self, num_decoding: int, num_prompts: int, *, beginning: bool = False, encoding: bool = False) -> int:
        """Prompt tokens for the next step.

        Prompts get half of the step, or their share of all requests if that is more, but not more than max_step_s leaves. In the
        first steps several prompts get more, so that requests that arrive together start together.

        Args:
            num_decoding: sequences that compute their next token; at least one.
            num_prompts: requests that have prompt tokens to compute.
            beginning: this is one of the first BEGINNING_STEPS.
            encoding: media are being encoded during the step.
        """
        return self._regimes[encoding].prompt_tokens(num_decoding, num_prompts, beginning)

    def costs(self, *, encoding: bool = False) -> StepCosts:
        """The costs of steps as they are now."""
        return self._regimes[encoding].costs

    def observe(self, num_decoding: int, num_prompt_tokens: int, step_s: float, *, encoding: bool = False) -> None:
        """Correct the costs with the measured duration of a step. Durations that cannot be are ignored."""
        if _SHORTEST_S < step_s < math.inf and num_decoding + num_prompt_tokens:
            self._regimes[encoding].observe(num_decoding, num_prompt_tokens, step_s)


class _Regime:
    """Pacing while the cores are shared in one way."""

    def __init__(self, costs: StepCosts, max_step_s: float, min_prompt_tokens: int) -> None:
        self._max_step_s, self._min_prompt_tokens = max_step_s, min_prompt_tokens
        self._estimate = CostEstimate(costs)
        self._small_steps_s = deque([0.0] * _NUM_SMALL_STEPS, _NUM_SMALL_STEPS)
        self._tokens_per_s: float | None = None  # of the last step with more than a few prompt tokens
        self._until_probe = _FIRST_PROBE

    @property
    def costs(self) -> StepCosts:
        return self._estimate.costs

    def prompt_tokens(self, num_decoding: int, num_prompts: int, beginning: bool) -> int:
        if self._max_step_s == math.inf:
            return sys.maxsize
        costs, least = self.costs, self._min_prompt_tokens
        decoding_s = costs.step_s(num_decoding)
        # A step longer than max_step_s is wanted only if steps have shown that decoding takes so long.
        shown_s = min(decoding_s, *self._small_steps_s)
        stretch = min((1 + num_prompts) / 2, _BEGINNING_STRETCH) if beginning else 1
        longest_s = max(self._max_step_s * stretch, shown_s * (1 + _LEAST_ADDITION))
        share = max(1 - (1 - _LEAST_SHARE) / stretch, num_prompts / (num_decoding + num_prompts))
        target_s = min(longest_s, decoding_s / (1 - share))
        num_tokens = round((target_s - decoding_s) / costs.prompt_token_s)
        if self._tokens_per_s is None:
            num_tokens = min(num_tokens, _FIRST_TOKENS)
        else:
            num_tokens = min(num_tokens, round(_MAX_SPEED_UP * target_s * self._tokens_per_s))
        self._until_probe -= 1
        if self._until_probe > 0:
            return max(least, num_tokens)
        self._until_probe = _PROBE_INTERVAL
        if min(self._small_steps_s) > longest_s:
            return 1  # more would take longer still; fewer show as well what is the cost of prompts
        if num_tokens > least:
            return least
        return max(_MAX_SPEED_UP * least, round(target_s * (self._tokens_per_s or 0)))  # perhaps more are cheaper than they seem

    def observe(self, num_decoding: int, num_prompt_tokens: int, step_s: float) -> None:
        self._estimate.observe(num_decoding, num_prompt_tokens, step_s)
        if num_decoding and num_prompt_tokens <= _MAX_SPEED_UP * self._min_prompt_tokens:
            self._small_steps_s.append(step_s)
        if num_prompt_tokens:
            tokens_per_s = num_prompt_tokens / step_s
            # A step with few prompt tokens is mostly decoding. It says little about how fast prompts are.
            if self._tokens_per_s is None or num_prompt_tokens > self._min_prompt_tokens:
                self._tokens_per_s = tokens_per_s
            else:
                self._tokens_per_s = max(self._tokens_per_s, tokens_per_s)
