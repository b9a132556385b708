"""Chooses tokens with tensor operations."""

from __future__ import annotations

import numpy as np
import torch

from triptych_engine.runner.sampling.choice import Chosen, SamplingMetadata
from triptych_engine.runner.sampling.numbers import uniform
from triptych_engine.runner.sampling.tensors.bans import Bans
from triptych_engine.runner.sampling.tensors.bias import Bias
from triptych_engine.runner.sampling.tensors.draw import draw, draw_sorted
from triptych_engine.runner.sampling.tensors.penalties import Penalties
from triptych_engine.runner.transfer import HostToDevice
from triptych_engine.scheduling.request import SamplingParams


class TensorChoice:
    """The state of rows, as tensors. Implements `Choice`. A feature that no row of a step uses costs it only one array lookup.

    Args:
        max_num_seqs: number of rows.
    """

    def __init__(self, max_num_seqs: int, device: torch.device, transfer: HostToDevice) -> None:
        self._transfer = transfer
        self._temperature = np.zeros(max_num_seqs, np.float32)
        self._seeds = np.zeros(max_num_seqs, np.uint64)
        self._cuts = np.zeros((max_num_seqs, 3))  # top-k (0: all), top-p, min-p
        self._is_cut = np.zeros(max_num_seqs, np.bool_)  # whether these leave tokens out
        self._penalties = Penalties(max_num_seqs, device, transfer)
        self._bias = Bias(max_num_seqs, transfer)
        self._bans = Bans(max_num_seqs, transfer)

    def add(self, row: int, sampling: SamplingParams, token_ids: list[int], num_prompt_tokens: int) -> None:
        self._temperature[row], self._seeds[row] = sampling.temperature, sampling.seed
        self._cuts[row] = sampling.top_k, sampling.top_p, sampling.min_p
        self._is_cut[row] = sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0
        self._penalties.add(row, sampling, token_ids, num_prompt_tokens)
        self._bias.add(row, sampling)
        self._bans.add(row, sampling)

    def remove(self, row: int) -> None:
        for state in (self._penalties, self._bias, self._bans):
            state.remove(row)

    def choose(self, logits: torch.Tensor, metadata: SamplingMetadata, kept: np.ndarray) -> Chosen:
        raw, raw_lines = logits, kept
        if self._has_edits(metadata):
            if len(kept) and logits.dtype == torch.float32:
                (lines,) = self._transfer(kept)
                raw, raw_lines = logits[lines], np.arange(len(kept))
            logits = self._edited(logits, metadata)
        best, token_ids = logits.max(-1)
        is_invalid = ~torch.isfinite(best)
        rows = metadata.idx_mapping
        drawn = np.flatnonzero(self._temperature[rows] > 0)
        if len(drawn):
            (lines,) = self._transfer(drawn)
            found = self._draw(logits[lines].float(), rows[drawn], metadata.positions[drawn])
            token_ids[lines] = torch.where(is_invalid[lines], token_ids[lines], found)
        self._penalties.update(token_ids, rows)
        return Chosen(token_ids, is_invalid, raw, raw_lines)

    def _has_edits(self, metadata: SamplingMetadata) -> bool:
        rows = metadata.idx_mapping
        return (
            metadata.rules is not None
            or self._penalties.applies(rows)
            or self._bias.applies(rows)
            or self._bans.applies(rows, metadata.positions)
        )

    def _edited(self, logits: torch.Tensor, metadata: SamplingMetadata) -> torch.Tensor:
        """The logits with all edits, in place if they are float32."""
        rows = metadata.idx_mapping
        logits = logits.float()
        self._penalties.apply(logits, rows)
        self._bias.apply(logits, rows)
        self._bans.apply(logits, rows, metadata.positions)
        if metadata.rules is not None:
            metadata.rules.apply(logits, rows, self._transfer)
        return logits

    def _draw(self, logits: torch.Tensor, rows: np.ndarray, positions: np.ndarray) -> torch.Tensor:
        """Draw from softmax(logits / temperature), cut by min-p, top-k and top-p. logits: [n, vocab_size] float32."""
        is_cut = self._is_cut[rows]
        numbers, temperature, cut_lines, whole_lines = self._transfer(
            uniform(self._seeds[rows], positions.astype(np.uint64)),
            self._temperature[rows],
            np.flatnonzero(is_cut),
            np.flatnonzero(~is_cut),
        )
        # Division by a low temperature may overflow. -inf must stay -inf.
        logits = (logits / temperature[:, None]).clamp(max=torch.finfo(torch.float32).max)
        if not is_cut.any():
            return draw(logits, numbers)
        token_ids = torch.empty(len(rows), dtype=torch.int64, device=logits.device)
        token_ids[cut_lines] = draw_sorted(logits[cut_lines], numbers[cut_lines], self._cuts[rows[is_cut]], self._transfer)
        if len(whole_lines):
            token_ids[whole_lines] = draw(logits[whole_lines], numbers[whole_lines])
        return token_ids
