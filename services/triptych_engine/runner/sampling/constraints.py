"""Constraints of outputs: a matcher for each row of the batch, and the masks of the tokens that it accepts next.

The matchers follow the tokens that the host knows. The mask of a row is right only when all its tokens are known, so the row is
sampled then (token_rules.py). After a preemption the matcher starts anew, and follows the output again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from triptych_common.constraints.cache import ConstraintCache
from triptych_common.errors import TriptychError

from triptych_engine.scheduling.request import SamplingParams

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher

#: The masks of up to this many rows are computed one by one: handing them to other threads would take longer.
_FEW_ROWS = 2


@dataclass(frozen=True, slots=True)
class TokenMasks:
    """The tokens that constraints allow in some lines."""

    lines: np.ndarray  # [m] int64
    #: [m, words] uint32: bit i of word w is set if token 32 * w + i is allowed.
    words: np.ndarray
    #: [m] whether nothing but the end may follow. Then an end-of-sequence token is sampled, whatever else forbids it.
    ends: np.ndarray
    #: [k] int64, end-of-sequence tokens.
    end_token_ids: np.ndarray


@dataclass(slots=True)
class _Follower:
    """The state of one row."""

    matcher: LLMatcher
    #: The tokens of which one starts the constraint; empty once it has started.
    start_token_ids: frozenset[int]
    #: An end is allowed only where nothing else is.
    ignores_eos: bool
    num_followed: int = 0  # output tokens

    def follow(self, token_ids: Sequence[int]) -> None:
        """Take further output tokens."""
        self.num_followed += len(token_ids)
        for index, token_id in enumerate(token_ids):
            if not self.start_token_ids:
                self.matcher.consume_tokens(list(token_ids[index:]))
                return
            if token_id in self.start_token_ids:
                self.start_token_ids = frozenset()


class Constraints:
    """The constraints of rows of the batch.

    Args:
        max_num_seqs: number of rows.
        cache: compiled constraints.
        num_threads: threads that compute masks; None takes most cores.
    """

    def __init__(self, max_num_seqs: int, cache: ConstraintCache, num_threads: int | None) -> None:
        self.used = np.zeros(max_num_seqs, np.bool_)  # [rows] whether the row has a constraint
        self._cache, self._num_threads = cache, num_threads
        self._followers: dict[int, _Follower] = {}  # row -> state
        self._errors: dict[int, str] = {}  # row -> why its constraint cannot be followed
        self._pool: LLExecutor | None = None  # made at the first use

    def add(self, row: int, sampling: SamplingParams) -> None:
        """Add a sequence. If its constraint is not in the cache, this compiles it."""
        constraint = sampling.constraint
        if constraint is None:
            return
        self.used[row] = True
        try:
            matcher = self._cache.copy(constraint.spec)
        except TriptychError as error:
            self._errors[row] = error.message
            return
        ignores_eos = sampling.stop_token_ids.isdisjoint(self._cache.end_token_ids)
        self._followers[row] = _Follower(matcher, frozenset(constraint.starts_after_token_ids), ignores_eos)

    def remove(self, row: int) -> None:
        """Remove a sequence."""
        self.used[row] = False
        self._followers.pop(row, None)
        self._errors.pop(row, None)

    def follow(self, row: int, output: np.ndarray) -> None:
        """Take the tokens that became known. output: [n] all known output tokens of the row."""
        follower = self._followers.get(row)
        if follower is not None and follower.num_followed < len(output):
            follower.follow(output[follower.num_followed :].tolist())

    def is_complete(self, row: int) -> bool:
        """Whether the output matches and nothing may follow it."""
        follower = self._followers.get(row)
        return follower is not None and not follower.start_token_ids and follower.matcher.is_stopped()

    def error(self, row: int) -> str:
        """Why the row's constraint cannot be followed; empty if it can."""
        if row in self._errors or row not in self._followers:
            return self._errors.get(row, "")
        error = self._followers[row].matcher.get_error()
        return error.splitlines()[0][:300] if error else ""

    def masks(self, idx_mapping: np.ndarray) -> TokenMasks | None:
        """The masks of lines whose constraint has started; None if there are none. idx_mapping: [num_lines] line -> row."""
        lines, followers = [], []
        for line in np.flatnonzero(self.used[idx_mapping]).tolist():
            follower = self._followers.get(int(idx_mapping[line]))
            if follower is not None and not follower.start_token_ids:
                lines.append(line)
                followers.append(follower)
        if not lines:
            return None
        words = self._fill([follower.matcher for follower in followers])
        end_token_ids = np.array(self._cache.end_token_ids, np.int64)
        end_words = np.zeros(words.shape[1], np.uint32)
        np.bitwise_or.at(end_words, end_token_ids // 32, np.uint32(1) << (end_token_ids % 32).astype(np.uint32))
        ends: np.ndarray = np.logical_and(~(words & ~end_words).any(-1), words.any(-1))
        ignores_eos = np.fromiter((follower.ignores_eos for follower in followers), np.bool_, len(followers))
        words[ignores_eos & ~ends] &= ~end_words
        return TokenMasks(np.array(lines, np.int64), words, ends, end_token_ids)

    def _fill(self, matchers: Sequence[LLMatcher]) -> np.ndarray:
        """[m, words] uint32, the masks of matchers. No bits are set for one that has an error."""
        from llguidance import LLExecutor

        num_words = -(-self._cache.num_tokens // 32)
        words = np.zeros((len(matchers), num_words), np.uint32)
        if len(matchers) <= _FEW_ROWS:
            for index, matcher in enumerate(matchers):
                matcher.unsafe_compute_mask_ptr(words[index].ctypes.data, num_words * 4)
        else:
            if self._pool is None:
                self._pool = LLExecutor(self._num_threads)
            numbered = [(matcher, index) for index, matcher in enumerate(matchers)]
            self._pool.unsafe_compute_mask_ptr(numbered, words.ctypes.data, num_words * 4, len(matchers))
        for index, matcher in enumerate(matchers):
            if matcher.is_error():
                words[index] = 0
        return words
