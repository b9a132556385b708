"""What the sampling parameters of rows change in their logits, in the form that kernels take."""

from __future__ import annotations

import numpy as np

from triptych_engine.runner.cpu.sampling_kernels import EDITS, SamplingKernels
from triptych_engine.runner.sampling.rules.constraints import TokenMasks
from triptych_engine.runner.sampling.rules.token_rules import StepRules
from triptych_engine.scheduling.request import SamplingParams

#: Initial number of distinct tokens that a row with penalties has room for, beside those of its prompt.
_MIN_ROOM = 64


class KernelEdits:
    """Penalties, bias and bans by row of the batch.

    Args:
        max_num_seqs: number of rows.
    """

    def __init__(self, max_num_seqs: int, kernels: SamplingKernels) -> None:
        self._kernels = kernels
        self._used = np.zeros(max_num_seqs, np.bool_)  # [rows] whether anything but allowed tokens changes the logits
        self._edits = np.zeros(max_num_seqs, EDITS)
        self._arrays: dict[int, list[np.ndarray]] = {}  # row -> what its addresses point to
        #: row -> ids [n] int64 and counts in the output [n] int32 of its tokens, with room for more
        self._counts: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._room = np.zeros(max_num_seqs, np.int64)  # [rows] n; 0 without penalties
        self._num_bad = np.zeros(max_num_seqs, np.int64)  # [rows] bad tokens, which come before the stop tokens
        self._num_banned = np.zeros(max_num_seqs, np.int64)  # [rows] bad tokens and stop tokens
        self._min_tokens = np.zeros(max_num_seqs, np.int64)
        self._allowed: dict[int, np.ndarray] = {}  # row -> mask [words] uint32, once the vocabulary is known; before, ids int64
        self._is_limited = np.zeros(max_num_seqs, np.bool_)  # [rows] whether only some tokens are allowed

    def add(self, row: int, sampling: SamplingParams, token_ids: list[int], num_prompt_tokens: int) -> None:
        """Add a sequence. token_ids: its prompt and its output so far."""
        self._edits[row] = np.zeros((), EDITS)
        stops = sorted(sampling.stop_token_ids) if sampling.min_tokens else []
        banned = np.array([*sampling.bad_token_ids, *stops], np.int64)
        biased = np.array([*sampling.logit_bias], np.int64)
        biases = np.array([*sampling.logit_bias.values()], np.float32)
        self._arrays[row] = [banned, biased, biases]
        edits = self._edits[row]
        edits["banned"], edits["biased"], edits["biases"] = (array.ctypes.data for array in self._arrays[row])
        edits["num_biased"] = len(biased)
        self._num_bad[row], self._num_banned[row] = len(sampling.bad_token_ids), len(banned)
        self._min_tokens[row] = sampling.min_tokens
        self._is_limited[row] = bool(sampling.allowed_token_ids)
        if sampling.allowed_token_ids:
            self._allowed[row] = np.array(sampling.allowed_token_ids, np.int64)
        params = sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty
        has_penalties = params != (1.0, 0.0, 0.0)
        if has_penalties:
            edits["repetition"], edits["frequency"], edits["presence"] = params
            self._count_tokens(row, token_ids, num_prompt_tokens)
        self._used[row] = has_penalties or len(banned) or len(biased)

    def _count_tokens(self, row: int, token_ids: list[int], num_prompt_tokens: int) -> None:
        ids, places = np.unique(np.array(token_ids, np.int64), return_inverse=True)
        counts = np.bincount(places[num_prompt_tokens:], minlength=len(ids)).astype(np.int32)
        self._edits[row]["num_penalized"] = len(ids)
        self._make_room(row, ids, counts, _MIN_ROOM)

    def _make_room(self, row: int, ids: np.ndarray, counts: np.ndarray, more: int) -> None:
        padded = self._counts[row] = np.pad(ids, (0, more)), np.pad(counts, (0, more))
        self._edits[row]["penalized"], self._edits[row]["counts"] = (array.ctypes.data for array in padded)
        self._room[row] = len(padded[0])

    def remove(self, row: int) -> None:
        """Remove the sequence in a row."""
        self._used[row] = self._is_limited[row] = False
        self._room[row] = 0
        for arrays in (self._arrays, self._counts, self._allowed):
            arrays.pop(row, None)

    def applies(self, rows: np.ndarray, rules: StepRules) -> np.ndarray:
        """[num_lines] bool, whether anything but a constraint changes what a line may choose. rows: [num_lines] line -> row."""
        applies = self._used[rows] | self._is_limited[rows]
        applies[rules.banned_lines] = True
        return applies

    def of_step(self, rows: np.ndarray, positions: np.ndarray, rules: StepRules | None) -> np.ndarray | None:
        """What changes in each line.

        Args:
            rows: [num_lines] line -> row.
            positions: [num_lines] number of output tokens of the sequence before the one that is chosen.
            rules: of the step; their bans count, not their constraints.

        Returns:
            [num_lines] EDITS, valid until a row is removed or `count` is called; None if nothing changes.
        """
        has_bans = rules is not None and len(rules.banned_lines) > 0
        if not self._used[rows].any() and not has_bans:
            return None
        edits: np.ndarray = self._edits[rows]
        edits["num_banned"] = np.where(positions < self._min_tokens[rows], self._num_banned[rows], self._num_bad[rows])
        if rules is not None and has_bans:  # the lines of their bans ascend
            first, last = (np.searchsorted(rules.banned_lines, np.arange(len(rows)), side) for side in ("left", "right"))
            edits["banned_too"] = rules.banned_ids.ctypes.data + first * rules.banned_ids.itemsize
            edits["num_banned_too"] = last - first
        return edits

    def allowed_masks(self, rows: np.ndarray, vocab_size: int) -> np.ndarray:
        """[n] the addresses of the masks of allowed tokens; 0 for rows that allow all."""
        addresses = np.zeros(len(rows), np.uintp)
        for line in np.flatnonzero(self._is_limited[rows]).tolist():
            allowed = self._allowed[row := int(rows[line])]
            if allowed.dtype != np.uint32:
                bits = np.zeros(-(-vocab_size // 32) * 32, np.bool_)
                bits[allowed] = True
                allowed = self._allowed[row] = np.packbits(bits, bitorder="little").view(np.uint32)
            addresses[line] = allowed.ctypes.data
        return addresses

    def leave_allowed(self, rows: np.ndarray, masks: TokenMasks) -> None:
        """Take tokens that rows do not allow out of their masks. After `allowed_masks`."""
        for index in np.flatnonzero(self._is_limited[rows]).tolist():
            allowed = self._allowed[int(rows[index])]
            masks.words[index, : len(allowed)] &= allowed

    def count(self, rows: np.ndarray, token_ids: np.ndarray) -> None:
        """Count chosen tokens. rows, token_ids: [n] int64."""
        counted = np.flatnonzero(self._room[rows])
        if not len(counted):
            return
        rows = rows[counted]
        for row in set(rows[self._edits["num_penalized"][rows] + len(rows) > self._room[rows]].tolist()):
            self._make_room(row, *self._counts[row], more=int(self._room[row]) + len(rows))
        self._kernels.count_tokens(self._edits, rows, token_ids[counted])
