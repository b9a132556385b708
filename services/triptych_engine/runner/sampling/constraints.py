"""Constraints of outputs: a matcher for each row of the batch, which takes or refuses tokens, and masks of what may follow.

The matchers follow the tokens that the host knows. What a row accepts is right only when all its tokens are known, so the row is
sampled then (token_rules.py). After a preemption the matcher starts anew, and follows the output again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from triptych_common.constraints.cache import ConstraintCache
from triptych_common.errors import TriptychError

from triptych_engine.runner.transfer import HostToDevice
from triptych_engine.scheduling.request import SamplingParams

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher

#: The masks of up to this many rows are computed one by one: handing them to other threads would take longer.
_FEW_ROWS = 2
#: [256, 8] what each byte of a mask adds to the logits of its eight tokens.
_ADDED = np.where((np.arange(256)[:, None] >> np.arange(8)) & 1, 0.0, -np.inf).astype(np.float32)


@dataclass(frozen=True, slots=True)
class TokenMasks:
    """The tokens that some rows accept."""

    #: [m, words] uint32: bit i of word w is set if token 32 * w + i is allowed.
    words: np.ndarray
    #: [m] whether nothing but the end may follow. Then an end-of-sequence token is sampled, whatever else forbids it.
    ends: np.ndarray
    #: [k] int64, end-of-sequence tokens.
    end_token_ids: np.ndarray

    def apply(self, logits: torch.Tensor, lines: np.ndarray, transfer: HostToDevice) -> None:
        """Set the logits of all other tokens to -inf, in place.

        Args:
            logits: [num_lines, vocab_size] float32.
            lines: [m] int64, the lines of the rows.
        """
        on_device, words, table = transfer(lines, self.words.view(np.int32), _ADDED)
        # Each byte of a mask finds what it adds to eight logits: a fifth of the time of unpacking the bits and masked_fill.
        added = torch.nn.functional.embedding(words.view(torch.uint8).int(), table).flatten(1)[:, : logits.shape[-1]]
        logits.index_add_(0, on_device, added)
        self.allow_ends(logits, lines, transfer)

    def allow_ends(self, logits: torch.Tensor, lines: np.ndarray, transfer: HostToDevice) -> None:
        """Undo what other edits did to the end-of-sequence tokens where nothing else may follow. Arguments as for `apply`."""
        if self.ends.any():
            ending, token_ids = transfer(lines[self.ends], self.end_token_ids)
            logits[ending[:, None], token_ids] = 0.0


@dataclass(slots=True)
class _Follower:
    """The state of one row."""

    matcher: LLMatcher
    #: The tokens of which one starts the constraint; empty once it has started.
    start_token_ids: frozenset[int]
    #: An end is allowed only where nothing else is.
    ignores_eos: bool
    num_followed: int = 0  # output tokens

    def takes(self, token_id: int) -> bool:
        """Whether the token is accepted next. Then it is taken. Else nothing changes."""
        if not self.matcher.try_consume_tokens([token_id]):
            return False
        self.num_followed += 1
        return True

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

    def started(self, idx_mapping: np.ndarray) -> np.ndarray:
        """[m] int64, the lines whose constraint has started. idx_mapping: [num_lines] line -> row."""
        lines = np.flatnonzero(self.used[idx_mapping])
        followers = (self._followers.get(row) for row in idx_mapping[lines].tolist())
        has_started = [follower is not None and not follower.start_token_ids for follower in followers]
        return lines[np.array(has_started, np.bool_)]

    def take(self, rows: np.ndarray, token_ids: np.ndarray) -> np.ndarray:
        """Offer a token to each row whose constraint has started.

        It is taken if it may follow. An end-of-sequence token never is: whether it may follow depends on more than the matcher.

        Args:
            rows: [n].
            token_ids: [n] int64.

        Returns:
            [n] bool, whether the row took its token.
        """
        ends = self._cache.end_token_ids
        pairs = zip(rows.tolist(), token_ids.tolist(), strict=True)
        taken = [token_id not in ends and self._followers[row].takes(token_id) for row, token_id in pairs]
        return np.array(taken, np.bool_)

    def masks(self, rows: np.ndarray) -> TokenMasks:
        """What rows accept next. rows: [n], whose constraints have started."""
        followers = [self._followers[row] for row in rows.tolist()]
        words = self._fill([follower.matcher for follower in followers])
        end_token_ids = np.array(self._cache.end_token_ids, np.int64)
        end_words = np.zeros(words.shape[1], np.uint32)
        np.bitwise_or.at(end_words, end_token_ids // 32, np.uint32(1) << (end_token_ids % 32).astype(np.uint32))
        ends: np.ndarray = np.logical_and(~(words & ~end_words).any(-1), words.any(-1))
        ignores_eos = np.fromiter((follower.ignores_eos for follower in followers), np.bool_, len(followers))
        words[ignores_eos & ~ends] &= ~end_words
        return TokenMasks(words, ends, end_token_ids)

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
