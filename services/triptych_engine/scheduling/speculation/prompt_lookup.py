"""Guesses the next tokens of a sequence: those that followed its last tokens where they stood before, in the prompt or the output.

The method is prompt lookup decoding (Saxena, 2023; vLLM's `ngram`). It needs no second model, and is right where a text repeats
itself: a document is quoted, code is edited, JSON has the same keys again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

#: Tokens that must match. Shorter matches are mostly chance; the longest match is taken, up to the second number.
_MIN_MATCH, _MAX_MATCH = 3, 16
#: Only so many of the latest places are compared further.
_MAX_PLACES = 256


class PromptLookup:
    """The tokens of one sequence, and where its last ones stood before."""

    def __init__(self) -> None:
        self._token_ids = np.empty(256, np.int32)
        self._num_tokens = 0

    def follow(self, token_ids: Sequence[int]) -> None:
        """Take the tokens that were added. token_ids: all tokens of the sequence."""
        num_tokens = len(token_ids)
        if num_tokens > len(self._token_ids):
            grown = np.empty(max(num_tokens, 2 * len(self._token_ids)), np.int32)
            grown[: self._num_tokens] = self._token_ids[: self._num_tokens]
            self._token_ids = grown
        self._token_ids[self._num_tokens : num_tokens] = token_ids[self._num_tokens :]
        self._num_tokens = num_tokens

    def find(self, most: int) -> list[int]:
        """Up to `most` tokens that may follow; empty if the last tokens are new.

        Where the text before ends, it goes on with what was found: a text that repeats itself does so more than once.
        """
        tokens = self._token_ids[: self._num_tokens]
        if most <= 0 or len(tokens) <= _MIN_MATCH:
            return []
        first, second, third = tokens[-_MIN_MATCH:]
        places = np.flatnonzero((tokens[:-3] == first) & (tokens[1:-2] == second) & (tokens[2:-1] == third))
        if not len(places):
            return []
        start = self._longest(tokens, places[-_MAX_PLACES:]) + _MIN_MATCH
        found = tokens[start : start + most]
        return np.resize(found, most).tolist()

    @staticmethod
    def _longest(tokens: np.ndarray, places: np.ndarray) -> int:
        """Of the places where the last tokens stood before, that with most equal tokens before them; the latest of several."""
        for length in range(_MIN_MATCH + 1, min(_MAX_MATCH, len(tokens)) + 1):
            back = length - _MIN_MATCH
            longer = places[(places >= back) & (tokens[places - back] == tokens[-length])]
            if not len(longer):
                break
            places = longer
        return int(places[-1])
