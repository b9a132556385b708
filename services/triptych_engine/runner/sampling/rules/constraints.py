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
from triptych.errors import TriptychError
from triptych_common.constraints.cache import ConstraintCache

from triptych_engine.runner.transfer import HostToDevice
from triptych_engine.scheduling.request import SamplingParams

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher

#: The masks of up to this many rows are computed one by one: handing them to other threads would take as long.
_FEW_ROWS = 8
#: [256, 8] what each byte of a mask adds to the logits of its eight tokens.
_ADDED = np.where((np.arange(256)[:, None] >> np.arange(8)) & 1, 0.0, -np.inf).astype(np.float32)


@dataclass(frozen=True, slots=True)
class TokenMasks:
    """The tokens that some rows accept."""

    #: [m, words] uint32: bit i of word w is set if token 32 * w + i is allowed.
    words: np.ndarray
    #: [m] whether nothing but the end may follow. Then the end-of-sequence token is sampled, whatever else forbids it.
    ends: np.ndarray
    #: The first of the end-of-sequence tokens.
    end_token_id: int

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
        if self.ends.any():
            (ending,) = transfer(lines[self.ends])
            logits[ending] = -torch.inf
            logits[ending, self.end_token_id] = 0.0


@dataclass(slots=True)
class _Follower:
    """The state of one row."""

    matcher: LLMatcher
    #: The tokens of which one starts the constraint; empty once it has started.
    start_token_ids: frozenset[int]
    #: An end is allowed only where nothing else is.
    ignores_eos: bool

    def take(self, token_ids: Sequence[int]) -> None:
        """Take further output tokens."""
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
        self.started = np.zeros(max_num_seqs, np.bool_)  # [rows] whether it applies to the next token
        self._num_followed = np.zeros(max_num_seqs, np.int64)  # [rows] output tokens
        self._cache, self._num_threads = cache, num_threads
        self._followers: dict[int, _Follower] = {}  # row -> state
        self._errors: dict[int, str] = {}  # row -> why its constraint cannot be followed
        self._pool: LLExecutor | None = None  # made at the first use

    def add(self, row: int, sampling: SamplingParams) -> None:
        """Add a sequence. If its constraint is not in the cache, this compiles it."""
        constraint = sampling.constraint
        if constraint is None:
            return
        self.used[row], self._num_followed[row] = True, constraint.start
        try:
            matcher = self._cache.copy(constraint.spec)
        except TriptychError as error:
            self._errors[row] = error.message
            return
        ignores_eos = sampling.stop_token_ids.isdisjoint(self._cache.end_token_ids)
        self._followers[row] = _Follower(matcher, frozenset(constraint.starts_after_token_ids), ignores_eos)
        self.started[row] = not constraint.starts_after_token_ids

    def remove(self, row: int) -> None:
        """Remove a sequence."""
        self.used[row] = self.started[row] = False
        self._followers.pop(row, None)
        self._errors.pop(row, None)

    def are_behind(self, rows: np.ndarray, num_output_tokens: np.ndarray) -> np.ndarray:
        """[n] bool, which constraints have not taken all output tokens yet. rows, num_output_tokens: [n]."""
        return self.used[rows] & (self._num_followed[rows] < num_output_tokens)

    def follow(self, row: int, output: np.ndarray) -> None:
        """Take the tokens that became known. output: [n] all known output tokens of the row."""
        num_followed, self._num_followed[row] = self._num_followed[row], len(output)
        if (follower := self._followers.get(row)) is not None:
            follower.take(output[num_followed:].tolist())
            self.started[row] = not follower.start_token_ids

    def has_stopped(self, row: int) -> bool:
        """Whether no token may follow the output: it matches, or there is an error."""
        return row in self._errors or bool(self.started[row] and self._followers[row].matcher.is_stopped())

    def error(self, row: int) -> str:
        """Why the row's constraint cannot be followed; empty if it can."""
        if row in self._errors or row not in self._followers:
            return self._errors.get(row, "")
        error = self._followers[row].matcher.get_error()
        return error.splitlines()[0][:300] if error else ""

    def take(self, rows: np.ndarray, token_ids: np.ndarray, takes_forced: np.ndarray) -> np.ndarray:
        """Offer tokens to each of some rows whose constraints apply and have taken all tokens before.

        The first that is in the row's mask is taken. The matcher accepts more than the mask: where the text is forced, the mask has
        one token, and the matcher takes any beginning of the text. Where the end is ignored, an end-of-sequence token never is
        taken, not even if nothing else may follow.

        Args:
            rows: [n].
            token_ids: [n, num_offered] int64; what is negative is no token.
            takes_forced: [n] bool, whether the token of a forced text is taken even if it is not offered.

        Returns:
            [n] int64, the token that was taken; -1 if the constraint took none.
        """
        ends = self._cache.end_token_ids
        taken = np.full(len(rows), -1, np.int64)
        for index, (row, offered) in enumerate(zip(rows.tolist(), token_ids.tolist(), strict=True)):
            follower = self._followers[row]
            if forced := follower.matcher.compute_ff_tokens()[:1]:
                offered = forced if takes_forced[index] or forced[0] in offered else []
            for token_id in dict.fromkeys(offered):
                if token_id < 0 or (follower.ignores_eos and token_id in ends):
                    continue
                if follower.matcher.try_consume_tokens([token_id]):
                    taken[index] = token_id
                    break
        self._num_followed[rows] += taken >= 0
        return taken

    def masks(self, rows: np.ndarray) -> TokenMasks:
        """What constraints accept next. rows: [n], whose constraints apply and have taken all tokens before."""
        followers = [self._followers[row] for row in rows.tolist()]
        words = self._fill([follower.matcher for follower in followers])
        end_token_ids = self._cache.end_token_ids
        may_end = np.array([words[:, token // 32] >> np.uint32(token % 32) & 1 for token in end_token_ids], np.bool_)
        ends = np.zeros(len(rows), np.bool_)
        for index in np.flatnonzero(may_end.any(0)).tolist():  # few: the end of a sequence rarely is allowed
            is_set = words[index].copy()
            for token in end_token_ids:
                words[index, token // 32] &= ~np.uint32(1 << token % 32)
            ends[index] = not words[index].any()
            if ends[index] or not followers[index].ignores_eos:
                words[index] = is_set
        return TokenMasks(words, ends, end_token_ids[0])

    def _fill(self, matchers: Sequence[LLMatcher]) -> np.ndarray:
        """[n, words] uint32, the masks of matchers. No bits are set for one that has an error."""
        from llguidance import LLExecutor

        num_words = -(-self._cache.num_tokens // 32)
        words = np.empty((len(matchers), num_words), np.uint32)
        if len(matchers) <= _FEW_ROWS:
            for index, matcher in enumerate(matchers):
                matcher.unsafe_compute_mask_ptr(words[index].ctypes.data, num_words * 4)
        else:
            if self._pool is None:
                self._pool = LLExecutor(self._num_threads)
            numbered = [(matcher, index) for index, matcher in enumerate(matchers)]
            self._pool.unsafe_compute_mask_ptr(numbered, words.ctypes.data, num_words * 4, len(matchers))
        words[[index for index, matcher in enumerate(matchers) if matcher.is_error()]] = 0
        return words
