"""Bad token sequences: where all but the last token of one stand at the end of the output, the last is banned."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


class BadSequences:
    """bad_token_sequences, by row of the batch. A row with many sequences is looked up once for each length that they have.

    Args:
        max_num_seqs: number of rows.
    """

    def __init__(self, max_num_seqs: int) -> None:
        self.used = np.zeros(max_num_seqs, np.bool_)  # [rows] whether the row has sequences
        #: row -> length of a beginning -> beginning -> the tokens that would complete a sequence.
        self._endings: dict[int, dict[int, dict[tuple[int, ...], list[int]]]] = {}

    def add(self, row: int, sequences: Sequence[tuple[int, ...]]) -> None:
        """Add a row. Each sequence has at least two tokens."""
        if not sequences:
            return
        self.used[row] = True
        endings = self._endings[row] = {}
        for *beginning, last in sequences:
            endings.setdefault(len(beginning), {}).setdefault(tuple(beginning), []).append(last)

    def remove(self, row: int) -> None:
        """Remove a row."""
        self.used[row] = False
        self._endings.pop(row, None)

    def banned(self, row: int, output: np.ndarray) -> list[int]:
        """The tokens that would complete a sequence. output: [n] the row's output tokens."""
        found: list[int] = []
        for length, endings in self._endings.get(row, {}).items():
            if length <= len(output):
                found += endings.get(tuple(output[len(output) - length :].tolist()), ())
        return found
