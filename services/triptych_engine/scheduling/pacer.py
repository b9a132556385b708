"""How many prompt tokens a step may take while other requests wait for their next token.

A long prompt computed at once stalls every stream beside it; cut into small chunks it waits for them. Sarathi-Serve (Agrawal et
al., 2024) bounds a step's tokens for that reason, with a number that somebody has to find for each model and machine. Here the step
is bounded in time: what tokens cost is measured at start, and how far that is off, because of longer contexts or company on the
cores, is learned from each step.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median

#: Steps whose median says what steps take lately: enough that one or two during which the process stood still do not count.
_WINDOW = 7
#: Prompts that wait get at least this share of a step: with many streams, one of many requests would have next to nothing of it.
_LEAST_SHARE = 0.5
#: Where decoding alone takes longer than the longest step wanted, prompts may add this much of it.
_LEAST_ADDITION = 0.5

#: Steps since somebody began to decode while nobody did, in which prompts get at least this share, and which may take so many times
#: the longest otherwise wanted. Of 64 short requests that come at once to two cores all have begun by then, the last in 0.7 of the
#: time. Steps are counted, not tokens of a stream: where all outputs are short, no stream would ever be old enough.
BEGINNING_STEPS = 12
_BEGINNING_SHARE = 0.9
_BEGINNING_STRETCH = 5


@dataclass(frozen=True, slots=True)
class StepCosts:
    """What a step takes, in seconds: fixed_s, and on top of it for each decoding sequence and for each prompt token."""

    fixed_s: float
    decode_s: float
    prompt_token_s: float

    def decoding_s(self, num_decoding: int) -> float:
        """A step's duration without prompts."""
        return self.fixed_s + num_decoding * self.decode_s


class StepPacer:
    """Shares a step's time between requests that decode and prompts.

    Args:
        costs: measured on this machine, with nothing else on it.
        max_step_s: longest step while anybody decodes, as far as the prompts in it are concerned; at the beginning more.
        min_prompt_tokens: however slow the machine, prompts go on by so many tokens.
    """

    def __init__(self, costs: StepCosts, max_step_s: float, min_prompt_tokens: int = 8) -> None:
        self._costs, self._max_step_s, self._min_prompt_tokens = costs, max_step_s, min_prompt_tokens
        # What decoding alone took lately with all cores, in units of its costs: these may have been measured beside others' start.
        self._decode_factors = deque([1.0], _WINDOW)
        # What steps with prompts took, in units of what was expected of them; of those beside an encoder on the same cores apart.
        self._factors = {encoding: deque([1.0], _WINDOW) for encoding in (False, True)}

    def prompt_tokens(self, num_decoding: int, num_prompts: int, *, beginning: bool = False, encoding: bool = False) -> int:
        """Prompt tokens for the next step.

        Prompts get half of it, or as much as their share of all requests if that is more, but not more than max_step_s leaves.
        At the beginning they get more: requests that come together shall begin together, rather than one after the other beside
        the first of them.

        Args:
            num_decoding: sequences that wait for their next token; at least one.
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
            return  # never bounded
        if num_prompt_tokens:
            self._factors[encoding].append(max(step_s, 1e-9) / self._expected_s(num_decoding, num_prompt_tokens))
        elif not encoding:
            self._decode_factors.append(max(step_s, 1e-9) / self._costs.decoding_s(num_decoding))

    def _expected_s(self, num_decoding: int, num_prompt_tokens: int) -> float:
        prompts_s = num_prompt_tokens * self._costs.prompt_token_s
        return median(self._decode_factors) * self._costs.decoding_s(num_decoding) + prompts_s
