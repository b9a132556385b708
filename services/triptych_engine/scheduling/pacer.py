"""Policy: how many prompt tokens a step may take while other requests wait for their next token.

A long prompt that is computed in one step stalls every stream beside it; cut into small chunks, the prompt itself takes long.
Sarathi-Serve (Agrawal et al., 2024) therefore bounds the tokens of a step, by a number that has to be found for each model and
machine. On CPUs the step is bounded in time instead. What tokens cost is measured at start. How far that is off, because contexts
are longer or other processes use the cores, is learned from each step.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median

#: The median over so many steps says what steps take lately. One or two during which the process stood still do not change it.
_WINDOW = 7
#: Prompts get at least this share of a step. By their number alone, one prompt beside many streams would get next to nothing.
_LEAST_SHARE = 0.5
#: Where decoding alone takes longer than the longest step that is wanted, prompts may add this fraction of it.
_LEAST_ADDITION = 0.5

#: The first steps in which somebody decodes. In them prompts get a larger share, and a step may take longer, so that requests that
#: come together begin together. Of 64 short requests that come together to two cores, all have begun within these steps, and the
#: last of them in 0.7 of the time. Steps are counted, not tokens of a stream: where outputs are short, no stream gets old enough.
BEGINNING_STEPS = 12
_BEGINNING_SHARE = 0.9
_BEGINNING_STRETCH = 5


@dataclass(frozen=True, slots=True)
class StepCosts:
    """What a step takes, in seconds: fixed_s, and more for each decoding sequence and for each prompt token."""

    fixed_s: float
    decode_s: float
    prompt_token_s: float

    def decoding_s(self, num_decoding: int) -> float:
        """A step's duration without prompts."""
        return self.fixed_s + num_decoding * self.decode_s


class StepPacer:
    """Shares a step's time between requests that decode and prompts.

    Args:
        costs: measured on this machine.
        max_step_s: prompts may not make a step longer than this while others decode; see BEGINNING_STEPS for the exception.
        min_prompt_tokens: prompts get at least so many tokens per step, however slow the machine.
    """

    def __init__(self, costs: StepCosts, max_step_s: float, min_prompt_tokens: int = 8) -> None:
        self._costs, self._max_step_s, self._min_prompt_tokens = costs, max_step_s, min_prompt_tokens
        # How many times its measured cost decoding alone took lately, with all cores. The cost may have been measured while other
        # services started.
        self._decode_factors = deque([1.0], _WINDOW)
        # How many times their expected cost steps with prompts took; steps beside an encoder on the same cores are counted apart.
        self._factors = {encoding: deque([1.0], _WINDOW) for encoding in (False, True)}

    def prompt_tokens(self, num_decoding: int, num_prompts: int, *, beginning: bool = False, encoding: bool = False) -> int:
        """Prompt tokens for the next step.

        Prompts get half of the step, or their share of all requests if that is more, but not more than max_step_s leaves. In the
        first steps they get more, so that requests that come together begin together.

        Args:
            num_decoding: sequences that compute their next token; at least one.
            num_prompts: requests that have prompt tokens to compute.
            beginning: this is one of the first BEGINNING_STEPS.
            encoding: media are being encoded meanwhile.
        """
        factor = median(self._factors[encoding])
        decoding_s = factor * self._expected_s(num_decoding, 0)
        share = max(_BEGINNING_SHARE if beginning else _LEAST_SHARE, num_prompts / (num_decoding + num_prompts))
        wanted_s = self._max_step_s * (_BEGINNING_STRETCH if beginning else 1)
        longest_s = max(wanted_s, decoding_s * (1 + _LEAST_ADDITION))
        prompts_s = min(longest_s, decoding_s / (1 - share)) - decoding_s
        return max(self._min_prompt_tokens, round(prompts_s / (factor * max(self._costs.prompt_token_s, 1e-9))))

    def observe(self, num_decoding: int, num_prompt_tokens: int, step_s: float, *, encoding: bool = False) -> None:
        """Learn from a step that took so long."""
        if not num_decoding:
            return  # such steps are not bounded
        if num_prompt_tokens:
            self._factors[encoding].append(max(step_s, 1e-9) / self._expected_s(num_decoding, num_prompt_tokens))
        elif not encoding:
            self._decode_factors.append(max(step_s, 1e-9) / self._costs.decoding_s(num_decoding))

    def _expected_s(self, num_decoding: int, num_prompt_tokens: int) -> float:
        prompts_s = num_prompt_tokens * self._costs.prompt_token_s
        return median(self._decode_factors) * self._costs.decoding_s(num_decoding) + prompts_s
