"""Logit biases of requests."""

from __future__ import annotations

import numpy as np
import torch

from triptych_engine.runner.sampling.tensors.sparse_rows import SparseRows
from triptych_engine.runner.transfer import HostToDevice
from triptych_engine.scheduling.request import SamplingParams


class Bias:
    """logit_bias, by row of the batch."""

    def __init__(self, max_num_seqs: int, transfer: HostToDevice) -> None:
        self._rows = SparseRows(max_num_seqs, transfer)

    def add(self, row: int, sampling: SamplingParams) -> None:
        """Add a sequence."""
        if bias := sampling.logit_bias:
            self._rows.set(row, np.fromiter(bias, np.int64, len(bias)), np.fromiter(bias.values(), np.float32, len(bias)))

    def remove(self, row: int) -> None:
        """Remove a sequence."""
        self._rows.remove(row)

    def applies(self, idx_mapping: np.ndarray) -> bool:
        """Whether any line changes. idx_mapping: [num_lines] line -> row."""
        return bool(self._rows.used[idx_mapping].any())

    def apply(self, logits: torch.Tensor, idx_mapping: np.ndarray) -> None:
        """Change logits [num_lines, vocab_size] in place. idx_mapping: [num_lines] line -> row."""
        changed = np.flatnonzero(self._rows.used[idx_mapping])
        if len(changed):
            lines, token_ids, values = self._rows.entries(changed, idx_mapping)
            logits[lines, token_ids] += values
