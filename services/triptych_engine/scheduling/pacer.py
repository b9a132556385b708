"""Policy: how many prompt tokens a step may compute while other requests decode.

A long prompt that is computed in one step stalls all decoding requests. If it is cut into small chunks, the prompt itself takes
long. Sarathi-Serve (Agrawal et al., 2024) therefore limits the tokens of a step, with a limit that must be tuned for each model and
machine. On CPUs, the duration of a step is limited instead. The cost of a token is measured at start. It can be wrong later,
because contexts get longer or other processes use the cores, so the measured duration of each step corrects it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median

#: Number of recent steps whose median is used. One or two steps during which the process was suspended do not change the median.
_WINDOW = 7
#: Prompts get at least this share of a step. A share by number of requests would leave a prompt among many streams almost nothing.
_LEAST_SHARE = 0.5
#: Prompts may always add this fraction of the decoding time, even if decoding alone takes longer than max_step_s.
_LEAST_ADDITION = 0.5

#: Number of steps, after a time without decoding, in which prompts get a larger share and a step may take longer. So requests that
#: arrive together start together. Measured with 64 short requests that arrive together, on two cores: all start within these steps,
#: and the last one starts in 0.7 of the time. Steps are counted, not a stream's tokens: with short outputs, no stream has enough.
BEGINNING_STEPS = 12
_BEGINNING_SHARE = 0.9
_BEGINNING_STRETCH = 5


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Duration of a step, in seconds: fixed_s, plus decode_s per decoding sequence, plus prompt_token_s per prompt token."""

    fixed_s: float
    decode_s: float
    prompt_token_s: float

    def decoding_s(self, num_decoding: int) -> float:
        """A step's duration without prompts."""
        return self.fixed_s + num_decoding * self.decode_s


class StepPacer:
    """Divides a step's time between decoding requests and prompts.

    Args:
        costs: measured on this machine.
        max_step_s: prompts may not make a step longer than this while others decode; see BEGINNING_STEPS for the exception.
        min_prompt_tokens: prompts get at least this many tokens per step, even on a slow machine.
    """

    def __init__(self, costs: StepCosts, max_step_s: float, min_prompt_tokens: int = 8) -> None:
        self._costs, self._max_step_s, self._min_prompt_tokens = costs, max_step_s, min_prompt_tokens
        # Recent durations of steps that only decode, with all cores, divided by the cost measured at start. That cost may be wrong:
        # other services may have been starting at the time.
        self._decode_factors = deque([1.0], _WINDOW)
        # Recent durations of steps with prompts, divided by their expected cost. Steps during which an encoder may use the same
        # cores are counted separately.
        self._factors = {encoding: deque([1.0], _WINDOW) for encoding in (False, True)}

    def prompt_tokens(self, num_decoding: int, num_prompts: int, *, beginning: bool = False, encoding: bool = False) -> int:
        """Prompt tokens for the next step.

        Prompts get half of the step, or their share of all requests if that is more, but not more than max_step_s leaves. In the
        first steps they get more, so that requests that arrive together start together.

        Args:
            num_decoding: sequences that compute their next token; at least one.
            num_prompts: requests that have prompt tokens to compute.
            beginning: this is one of the first BEGINNING_STEPS.
            encoding: media are being encoded during the step.
        """
        factor = median(self._factors[encoding])
        decoding_s = factor * self._expected_s(num_decoding, 0)
        share = max(_BEGINNING_SHARE if beginning else _LEAST_SHARE, num_prompts / (num_decoding + num_prompts))
        wanted_s = self._max_step_s * (_BEGINNING_STRETCH if beginning else 1)
        longest_s = max(wanted_s, decoding_s * (1 + _LEAST_ADDITION))
        prompts_s = min(longest_s, decoding_s / (1 - share)) - decoding_s
        return max(self._min_prompt_tokens, round(prompts_s / (factor * max(self._costs.prompt_token_s, 1e-9))))

    def observe(self, num_decoding: int, num_prompt_tokens: int, step_s: float, *, encoding: bool = False) -> None:
        """Correct the costs with the measured duration of a step."""
        if not num_decoding:
            return  # such steps are not limited
        if num_prompt_tokens:
            self._factors[encoding].append(max(step_s, 1e-9) / self._expected_s(num_decoding, num_prompt_tokens))
        elif not encoding:
            self._decode_factors.append(max(step_s, 1e-9) / self._costs.decoding_s(num_decoding))

    def _expected_s(self, num_decoding: int, num_prompt_tokens: int) -> float:
        prompts_s = num_prompt_tokens * self._costs.prompt_token_s
        return median(self._decode_factors) * self._costs.decoding_s(num_decoding) + prompts_s
