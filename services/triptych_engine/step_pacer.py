"""How many prompt tokens a step may take while other requests wait for their next token.

A long prompt computed at once stalls every stream beside it; cut into small chunks it waits for them. Sarathi-Serve (Agrawal et
al., 2024) bounds a step's tokens for that reason, with a number that somebody has to find for each model and machine. Here the step
is bounded in time: what tokens cost is measured at start, and how far that is off, because of longer contexts or company on the
cores, is learned from each step.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Weight of the newest step in what is learned.
_GAIN = 0.2
#: A step may be off by so much; beyond that something else happened than computing (the process was stopped, say).
_LEAST_FACTOR, _LARGEST_FACTOR = 0.2, 5.0
#: Where decoding alone takes longer than the longest step wanted, prompts may add this share of it.
_LEAST_PROMPT_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class StepCosts:
    """What a step takes, in seconds: fixed_s, and on top of it for each decoding sequence and for each prompt token."""

    fixed_s: float
    decode_s: float
    prompt_token_s: float

    def step_s(self, num_decoding: int, num_prompt_tokens: int) -> float:
        """A step's duration by these costs."""
        return self.fixed_s + num_decoding * self.decode_s + num_prompt_tokens * self.prompt_token_s


class StepPacer:
    """Shares a step's time between requests that decode and prompts.

    Args:
        costs: measured on this machine, with nothing else on it.
        max_step_s: longest step while anybody decodes, as far as the prompts in it are concerned.
        min_prompt_tokens: however slow the machine, prompts go on by so many tokens.
    """

    def __init__(self, costs: StepCosts, max_step_s: float, min_prompt_tokens: int = 16) -> None:
        self._costs, self._max_step_s, self._min_prompt_tokens = costs, max_step_s, min_prompt_tokens
        self._factor = 1.0  # what steps take lately, in units of the costs

    def prompt_tokens(self, num_decoding: int, num_prompts: int) -> int:
        """Prompt tokens for the next step.

        Each request has its turn: with as many prompts to compute as sequences that decode, a step takes twice as long as decoding
        alone, within max_step_s.

        Args:
            num_decoding: sequences that wait for their next token; at least one.
            num_prompts: requests that have prompt tokens to compute.
        """
        decoding_s = self._factor * self._costs.step_s(num_decoding, 0)
        longest_s = max(self._max_step_s, decoding_s * (1 + _LEAST_PROMPT_SHARE))
        fair_s = decoding_s * (num_decoding + num_prompts) / num_decoding
        prompts_s = min(longest_s, fair_s) - decoding_s
        return max(self._min_prompt_tokens, round(prompts_s / (self._factor * max(self._costs.prompt_token_s, 1e-9))))

    def observe(self, num_decoding: int, num_prompt_tokens: int, step_s: float) -> None:
        """Learn from a step that took so long."""
        off_by = step_s / self._costs.step_s(num_decoding, num_prompt_tokens)
        off_by = min(_LARGEST_FACTOR, max(_LEAST_FACTOR, off_by))
        self._factor += _GAIN * (off_by - self._factor)
