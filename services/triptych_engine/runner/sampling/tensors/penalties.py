"""Repetition, frequency and presence penalties: they make tokens that a sequence already contains less likely."""

from __future__ import annotations

import numpy as np
import torch

from triptych_engine.runner.transfer import HostToDevice
from triptych_engine.scheduling.request import SamplingParams

#: Initial number of entries per slot.
_MIN_ENTRIES = 256


class Penalties:
    """Penalties and the tokens to which they apply, by row of the batch.

    A row with penalties has a slot of entries on the device. An entry is a token id, and how often that token is in the output.
    When a sequence is added, each of its distinct tokens gets one entry. After that, each sampled token gets the next entry, even
    if it already has one. So the host knows the place of the entry without waiting for the token. Entries of the same token have
    the same count, and unused entries repeat the first one. So all entries can be read and written in the same way.

    Args:
        max_num_seqs: number of rows.
    """

    def __init__(self, max_num_seqs: int, device: torch.device, transfer: HostToDevice) -> None:
        self._transfer = transfer
        self._slots = np.full(max_num_seqs, -1, np.int64)  # row -> slot; -1 without penalties
        self._lengths = np.zeros(max_num_seqs, np.int64)  # row -> used entries
        self._params = np.zeros((max_num_seqs, 3), np.float32)  # row -> repetition, frequency, presence
        self._free_slots: list[int] = []
        self._token_ids = torch.zeros((0, _MIN_ENTRIES), dtype=torch.int64, device=device)  # [slots, entries]
        self._counts = torch.zeros((0, _MIN_ENTRIES), dtype=torch.int32, device=device)  # [slots, entries]

    def add(self, row: int, sampling: SamplingParams, token_ids: list[int], num_prompt_tokens: int) -> None:
        """Add a sequence with its prompt and its output so far. Does not wait for the device."""
        params = sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty
        if params == (1.0, 0.0, 0.0):
            return
        ids, places = np.unique(np.array(token_ids, np.int64), return_inverse=True)
        counts = np.bincount(places[num_prompt_tokens:], minlength=len(ids)).astype(np.int32)
        self._reserve(len(ids) + 1, is_new=True)
        slot = self._slots[row] = self._free_slots.pop()
        self._lengths[row], self._params[row] = len(ids), params
        padding = (0, self._token_ids.shape[1] - len(ids))
        padded = self._transfer(
            np.pad(ids, padding, constant_values=ids[0]), np.pad(counts, padding, constant_values=counts[0])
        )  # fmt: skip
        self._token_ids[slot].copy_(padded[0])
        self._counts[slot].copy_(padded[1])

    def remove(self, row: int) -> None:
        """Remove a sequence."""
        if self._slots[row] >= 0:
            self._free_slots.append(int(self._slots[row]))
            self._slots[row] = -1

    def applies(self, idx_mapping: np.ndarray) -> bool:
        """Whether any line changes. idx_mapping: [num_lines] line -> row."""
        return bool((self._slots[idx_mapping] >= 0).any())

    def apply(self, logits: torch.Tensor, idx_mapping: np.ndarray) -> None:
        """Change logits [num_lines, vocab_size] float32 in place. idx_mapping: [num_lines] line -> row."""
        lines = np.flatnonzero(self._slots[idx_mapping] >= 0)
        if not len(lines):
            return
        rows = idx_mapping[lines]
        num_entries = int(self._lengths[rows].max())
        on_device, slots, params = self._transfer(lines, self._slots[rows], self._params[rows])
        repetition, frequency, presence = params[:, :, None].unbind(1)  # each [m, 1]
        counts = self._counts[slots, :num_entries]
        entries = on_device[:, None], self._token_ids[slots, :num_entries]
        values = logits[entries]  # [m, num_entries]
        values = torch.where(values > 0, values / repetition, values * repetition)
        logits[entries] = values - frequency * counts - presence * (counts > 0)

    def update(self, token_ids: torch.Tensor, idx_mapping: np.ndarray) -> None:
        """Add sampled tokens to the entries, on the device.

        Args:
            token_ids: [num_lines] int64.
            idx_mapping: [num_lines] line -> row, no row twice.
        """
        lines = np.flatnonzero(self._slots[idx_mapping] >= 0)
        if not len(lines):
            return
        rows = idx_mapping[lines]
        self._reserve(int(self._lengths[rows].max()) + 1, is_new=False)
        on_device, slots, ends = self._transfer(lines, self._slots[rows], self._lengths[rows])
        new, counts = token_ids[on_device], self._counts[slots]
        same = self._token_ids[slots] == new[:, None]
        self._counts[slots] = counts + same
        self._token_ids[slots, ends] = new
        self._counts[slots, ends] = (counts * same).amax(-1) + 1
        self._lengths[rows] += 1

    def _reserve(self, num_entries: int, *, is_new: bool) -> None:
        """Make room for `num_entries` entries per slot and, if is_new, for a free slot."""
        num_slots, capacity = self._token_ids.shape
        if is_new and not self._free_slots:
            grown = max(4, 2 * num_slots)
            self._free_slots += range(num_slots, grown)
        else:
            grown = num_slots
        while capacity < num_entries:
            capacity *= 2
        if (grown, capacity) != self._token_ids.shape:
            self._token_ids, self._counts = _grow(self._token_ids, grown, capacity), _grow(self._counts, grown, capacity)


def _grow(entries: torch.Tensor, num_slots: int, capacity: int) -> torch.Tensor:
    """Entries [slots, n] with more of both; new entries repeat the first of their slot."""
    grown = entries.new_zeros((num_slots, capacity))
    old_slots, old_capacity = entries.shape
    grown[:old_slots, :old_capacity] = entries
    grown[:old_slots, old_capacity:] = entries[:, :1]
    return grown
