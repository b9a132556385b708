"""Decides how many tokens to guess for a sequence, by how many guesses were right so far and by what one costs now.

A draft token costs about what a further sequence costs in the step: its layers and its logits. It makes tokens come faster if
the step's time grows by less than its tokens do: if the probability that it is right, with all before it, is larger than its
cost divided by what a token of the step costs so far. With one sequence a draft token is cheap on most processors, because a
step reads all weights whatever it computes. With many sequences it costs as much as any token, and none is worth it. The costs
are those that the pacer measures (step_costs.py), so there is nothing to tune.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from triptych_engine.scheduling.pacer import StepPacer
from triptych_engine.scheduling.request import Request
from triptych_engine.scheduling.speculation.prompt_lookup import PromptLookup

#: Draft tokens of one sequence in one step, at most.
MAX_DRAFT_TOKENS = 16
#: What a sequence's draft tokens are worth before anything is known: so many were right, and so many wrong.
_RIGHT, _WRONG = 1.0, 0.6
_PRIOR = _RIGHT / (_RIGHT + _WRONG)
#: How fast earlier ones are forgotten, per verified step.
_KEPT = 0.85
#: A sequence whose draft tokens do not pay begins anew after so many steps.
_PAUSE = 24
#: With a draft token that costs more than this share of a token, hardly anything can be won.
_LARGEST_COST = 0.8
#: A draft token costs at least this share of a step's fixed time. The estimate may be next to nothing.
_LEAST_OF_FIXED = 1 / 64
#: With several sequences, draft tokens make a step longer by this share at most: those of one sequence hold the others up.
_MOST_ADDED = 0.5


class Drafter(Protocol):
    """Proposes the tokens that follow those of a sequence."""

    def begin_step(self, num_decoding: int, *, had_prompts: bool, encoding: bool) -> bool:
        """Begin a step. Returns whether draft tokens may pay in it.

        Args:
            num_decoding: sequences that compute their next token.
            had_prompts: the step before computed tokens of prompts.
            encoding: media are being encoded during the step.
        """
        ...

    def propose(self, request: Request, most: int) -> list[int]:
        """Up to `most` tokens that may follow the request's; often none."""
        ...

    def observe(self, request: Request, num_draft_tokens: int, num_accepted: int) -> None:
        """Learn how many of the tokens proposed for a request were right."""
        ...


@dataclass(slots=True)
class Drafting:
    """What a drafter knows of one sequence."""

    lookup: PromptLookup = field(default_factory=PromptLookup)
    right: float = _RIGHT
    wrong: float = _WRONG
    #: Steps until the next try.
    pause: int = 0

    @property
    def acceptance(self) -> float:
        """The probability that a guess is right, if those before it were."""
        return self.right / (self.right + self.wrong)


class PromptLookupDrafter:
    """Guesses by prompt lookup. Implements `Drafter`. With asynchronous scheduling, the newest tokens would not be known.

    Args:
        pacer: knows what steps cost now.
    """

    def __init__(self, pacer: StepPacer) -> None:
        self._pacer = pacer
        self._cost_s = 0.0  # of a draft token
        # Of the step that is planned, with its draft tokens: its time, the longest that it may have, and the tokens to be expected.
        self._step_s = self._longest_s = self._num_tokens = 0.0

    def begin_step(self, num_decoding: int, *, had_prompts: bool, encoding: bool) -> bool:
        if had_prompts:  # probably there are more, which use the time better
            return False
        costs = self._pacer.costs(encoding=encoding)
        self._cost_s = max(costs.decode_s, costs.fixed_s * _LEAST_OF_FIXED)
        self._num_tokens, self._step_s = num_decoding, costs.step_s(num_decoding)
        self._longest_s = self._step_s * (1 + _MOST_ADDED) if num_decoding > 1 else float("inf")
        return self._cost_s * self._num_tokens < _LARGEST_COST * self._step_s

    def propose(self, request: Request, most: int) -> list[int]:
        drafting = self._of(request)
        if drafting.pause:
            drafting.pause -= 1
            return []
        length = self._length(drafting.acceptance, min(most, MAX_DRAFT_TOKENS))
        if not length:
            if drafting.acceptance < _PRIOR and most > 0:
                request.drafting = Drafting(drafting.lookup, pause=_PAUSE)  # what was wrong here may be right further on
            return []
        drafting.lookup.follow(request.token_ids)
        tokens = drafting.lookup.find(length)
        # Nothing follows a token that ends the sequence.
        ends = (index for index, token_id in enumerate(tokens) if token_id in request.sampling.stop_token_ids)
        tokens = tokens[: next(ends, len(tokens))]
        self._step_s += len(tokens) * self._cost_s
        self._num_tokens += sum(drafting.acceptance ** (index + 1) for index in range(len(tokens)))
        return tokens

    def observe(self, request: Request, num_draft_tokens: int, num_accepted: int) -> None:
        drafting = self._of(request)
        drafting.right = drafting.right * _KEPT + num_accepted
        drafting.wrong = drafting.wrong * _KEPT + (num_accepted < num_draft_tokens)

    def _length(self, acceptance: float, most: int) -> int:
        """The number of draft tokens that pay."""
        length, step_s, num_tokens, is_right = 0, self._step_s, self._num_tokens, acceptance
        while length < most and is_right * step_s > self._cost_s * num_tokens and step_s + self._cost_s <= self._longest_s:
            length += 1
            step_s, num_tokens = step_s + self._cost_s, num_tokens + is_right
            is_right *= acceptance
        return length

    @staticmethod
    def _of(request: Request) -> Drafting:
        if not isinstance(request.drafting, Drafting):
            request.drafting = Drafting()
        return request.drafting
