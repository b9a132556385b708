"""Bad token sequences: where all but the last token of one stand at the end of the output, the last is banned. And tokens that are
banned at the beginning of the output."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


class BadSequences:
    """bad_token_sequences and first_bad_token_ids, by row of the batch. A row with many sequences is looked up
    once for each length that they have.

    Args:
        max_num_seqs: number of rows.
    """

    def __init__(self, max_num_seqs: int) -> None:
        self.used = np.zeros(max_num_seqs, np.bool_)  # [rows] whether the row has sequences
        #: row -> length of a beginning -> beginning -> the tokens that would complete a sequence.
        self._endings: dict[int, dict[int, dict[tuple[int, ...], list[int]]]] = {}
        self._first: dict[int, Sequence[int]] = {}  # row -> tokens

    def add(self, row: int, sequences: Sequence[tuple[int, ...]], first: Sequence[int] = ()) -> None:
        """Add a row. Each sequence has at least two tokens. first: tokens that are banned where the output is empty."""
        if not sequences and not first:
            return
        self.used[row] = True
        self._first[row] = first
        endings = self._endings[row] = {}
        for *beginning, last in sequences:
            endings.setdefault(len(beginning), {}).setdefault(tuple(beginning), []).append(last)

    def remove(self, row: int) -> None:
        """Remove a row."""
        self.used[row] = False
        self._endings.pop(row, None)
        self._first.pop(row, None)

    def banned(self, row: int, output: np.ndarray) -> list[int]:
        """The tokens that would complete a sequence. output: [n] the row's output tokens."""
        found: list[int] = [] if len(output) else [*self._first.get(row, ())]
        for length, endings in self._endings.get(row, {}).items():
            if length <= len(output):
                found += endings.get(tuple(output[len(output) - length :].tolist()), ())
        return found
