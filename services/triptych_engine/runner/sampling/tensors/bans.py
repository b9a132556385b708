"""Banned tokens: tokens that are not allowed, bad tokens, and stop tokens before min_tokens."""

from __future__ import annotations

import numpy as np
import torch

from triptych_engine.runner.sampling.tensors.sparse_rows import SparseRows
from triptych_engine.runner.transfer import HostToDevice
from triptych_engine.scheduling.request import SamplingParams


class Bans:
    """allowed_token_ids, bad_token_ids, and stop_token_ids with min_tokens, by row of the batch."""

    def __init__(self, max_num_seqs: int, transfer: HostToDevice) -> None:
        self._allowed, self._bad, self._stops = (SparseRows(max_num_seqs, transfer) for _ in range(3))
        self._min_tokens = np.zeros(max_num_seqs, np.int64)

    def add(self, row: int, sampling: SamplingParams) -> None:
        """Add a sequence."""
        stops = sorted(sampling.stop_token_ids) if sampling.min_tokens else []
        of_kinds = (self._allowed, sampling.allowed_token_ids), (self._bad, sampling.bad_token_ids), (self._stops, stops)
        for rows, token_ids in of_kinds:
            if token_ids:
                rows.set(row, np.array(token_ids, np.int64), np.full(len(token_ids), -np.inf, np.float32))
        self._min_tokens[row] = sampling.min_tokens

    def remove(self, row: int) -> None:
        """Remove a sequence."""
        for rows in (self._allowed, self._bad, self._stops):
            rows.remove(row)

    def applies(self, idx_mapping: np.ndarray, positions: np.ndarray) -> bool:
        """Whether any line changes. Arguments as for `apply`."""
        is_changed = self._allowed.used[idx_mapping] | self._bad.used[idx_mapping] | self._bars_stops(idx_mapping, positions)
        return bool(is_changed.any())

    def apply(self, logits: torch.Tensor, idx_mapping: np.ndarray, positions: np.ndarray) -> None:
        """Set the logits of banned tokens to -inf, in place.

        Args:
            logits: [num_lines, vocab_size] float32.
            idx_mapping: [num_lines] line -> row.
            positions: [num_lines] number of output tokens before the one that is sampled.
        """
        if len(changed := np.flatnonzero(self._allowed.used[idx_mapping])):
            lines, token_ids, _ = self._allowed.entries(changed, idx_mapping)
            kept = logits[lines, token_ids]
            logits.index_fill_(0, lines, -torch.inf)
            logits[lines, token_ids] = kept
        for rows, is_changed in (
            (self._bad, self._bad.used[idx_mapping]),
            (self._stops, self._bars_stops(idx_mapping, positions)),
        ):
            if len(changed := np.flatnonzero(is_changed)):
                lines, token_ids, lowest = rows.entries(changed, idx_mapping)
                logits[lines, token_ids] = lowest

    def _bars_stops(self, idx_mapping: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """[num_lines] whether stop tokens are still banned."""
        return self._stops.used[idx_mapping] & (positions < self._min_tokens[idx_mapping])
