"""Token ids with values for some rows of the batch. A step gets those of its lines concatenated, with the line of each entry."""

from __future__ import annotations

import numpy as np
import torch

from triptych_engine.runner.transfer import HostToDevice


class SparseRows:
    """Memory use grows with the number of entries, not with rows times vocabulary.

    Args:
        max_num_seqs: number of rows.
    """

    def __init__(self, max_num_seqs: int, transfer: HostToDevice) -> None:
        self._transfer = transfer
        self.used = np.zeros(max_num_seqs, np.bool_)  # [rows] whether the row has entries
        self._entries: dict[int, list[torch.Tensor]] = {}  # row -> token ids and values, on the device

    def set(self, row: int, token_ids: np.ndarray, values: np.ndarray) -> None:
        """Give a row its entries.

        Args:
            token_ids: [n] int64.
            values: [n] float32.
        """
        self.used[row] = True
        self._entries[row] = self._transfer(token_ids, values)

    def remove(self, row: int) -> None:
        """Remove a row's entries, if it has any."""
        self.used[row] = False
        self._entries.pop(row, None)

    def entries(self, lines: np.ndarray, idx_mapping: np.ndarray) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The entries of the rows of some lines.

        Args:
            lines: [m] lines whose rows have entries.
            idx_mapping: [num_lines] line -> row.

        Returns:
            Line, token id and value of each entry, [num_entries].
        """
        of_lines = [self._entries[row] for row in idx_mapping[lines].tolist()]
        lengths = np.array([len(token_ids) for token_ids, _ in of_lines])
        on_device, repeats = self._transfer(lines, lengths)
        line_of_entry = torch.repeat_interleave(on_device, repeats, output_size=int(lengths.sum()))
        return line_of_entry, torch.cat([token_ids for token_ids, _ in of_lines]), torch.cat([values for _, values in of_lines])
