"""Chooses a token of each line, after all edits of the logits: the likeliest one, or one by temperature, min-p, top-k and top-p.

A constrained line draws from the tokens that its constraint accepts. Their mask takes long to compute where many tokens may follow.
So on CPUs a token is drawn from all tokens first. If the constraint takes it, no mask is needed; else the mask is computed, and a
token is drawn from those that it leaves, with a new random number. This is rejection sampling: the tokens come as often as with the
mask alone, because P(t) = p(t) + (1 - p(accepted)) * p(t) / p(accepted) = p(t) / p(accepted). It would be wrong for rows that leave
tokens out, because min-p, top-k and top-p choose among the accepted tokens only. These rows always get a mask.
"""

from __future__ import annotations

import numpy as np
import torch

from triptych_engine.runner.cpu.kernels import CpuKernels
from triptych_engine.runner.cpu.sampling_kernels import DRAW_ARGS, SamplingKernels
from triptych_engine.runner.sampling.sampling_ops import draw, draw_sorted, uniform
from triptych_engine.runner.sampling.token_rules import StepRules
from triptych_engine.runner.transfer import HostToDevice
from triptych_engine.scheduling.request import SamplingParams

#: Added to a position for the number of a second draw.
_SECOND_DRAW = np.uint64(1 << 63)


class Draws:
    """How each row of the batch chooses its tokens.

    Args:
        max_num_seqs: number of rows.
        kernels: CPU kernels; None if the logits are not on a CPU or the kernels are not available.
    """

    def __init__(self, max_num_seqs: int, transfer: HostToDevice, kernels: CpuKernels | None) -> None:
        self._transfer, self._kernels = transfer, kernels
        self._temperature = np.zeros(max_num_seqs, np.float32)
        self._seeds = np.zeros(max_num_seqs, np.uint64)
        self._cuts = np.zeros((max_num_seqs, 3))  # top-k (0: all), top-p, min-p
        self._is_cut = np.zeros(max_num_seqs, np.bool_)  # whether these leave tokens out of what is drawn
        self._args = np.zeros(max_num_seqs, DRAW_ARGS)  # what of them does not change

    def add(self, row: int, sampling: SamplingParams) -> None:
        """Add a sequence."""
        self._temperature[row], self._seeds[row] = sampling.temperature, sampling.seed
        self._cuts[row] = sampling.top_k, sampling.top_p, sampling.min_p
        is_cut = sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0
        self._is_cut[row] = is_cut and sampling.temperature > 0
        args = self._args[row]
        args["top_k"], args["top_p"], args["min_p"] = self._cuts[row]
        args["temperature"], args["is_cut"] = sampling.temperature, self._is_cut[row]

    def choose(
        self, logits: torch.Tensor, rows: np.ndarray, positions: np.ndarray, rules: StepRules | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Choose without waiting for the device.

        Args:
            logits: [num_lines, vocab_size], any float type. Those of float32 may be edited in place.
            rows: [num_lines] line -> row.
            positions: [num_lines] int64, number of output tokens of the sequence before the one that is chosen.
            rules: of the lines; bans have been applied.

        Returns:
            The token of each line [num_lines] int64, and whether the line is invalid [num_lines] bool: one of its logits is NaN, or
            none is finite.
        """
        if self._kernels is None:
            return self._by_tensors(logits, rows, positions, rules)
        return self._by_kernels(self._kernels.sampling, _dense_floats(logits), rows, positions, rules)

    def _by_kernels(
        self, kernels: SamplingKernels, logits: torch.Tensor, rows: np.ndarray, positions: np.ndarray, rules: StepRules | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        seeds, places = self._seeds[rows], positions.astype(np.uint64)
        args = self._args[rows]
        args["row"] = np.arange(len(rows))
        args["number"] = kernels.uniform(seeds, places)
        if rules is None or not len(rules.constrained):
            token_ids = kernels.draw(logits, args)
        else:
            constrained = rules.constrained
            waits = np.zeros(len(rows), np.bool_)  # for its mask
            waits[constrained] = self._is_cut[rows[constrained]]
            token_ids = np.full(len(rows), -1)
            token_ids[~waits] = kernels.draw(logits, args[~waits])
            offered = constrained[token_ids[constrained] >= 0]
            waits[constrained] = True
            waits[offered] = ~rules.constraints.take(rows[offered], token_ids[offered])
            if len(refused := np.flatnonzero(waits)):
                masks = rules.constraints.masks(rows[refused])
                masks.allow_ends(logits, refused, self._transfer)
                again = args[refused]
                again["number"] = kernels.uniform(seeds[refused], places[refused] + _SECOND_DRAW)
                again["mask"] = masks.words.ctypes.data + np.arange(len(refused)) * masks.words.strides[0]
                token_ids[refused] = kernels.draw(logits, again)
        return torch.from_numpy(np.maximum(token_ids, 0)), torch.from_numpy(token_ids < 0)

    def _by_tensors(
        self, logits: torch.Tensor, rows: np.ndarray, positions: np.ndarray, rules: StepRules | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if rules is not None and len(lines := rules.constrained):
            logits = logits.float()
            rules.constraints.masks(rows[lines]).apply(logits, lines, self._transfer)
        best, token_ids = logits.max(-1)
        is_invalid = ~torch.isfinite(best)
        drawn = np.flatnonzero(self._temperature[rows] > 0)
        if len(drawn):
            (lines_drawn,) = self._transfer(drawn)
            found = self._draw(logits[lines_drawn].float(), rows[drawn], positions[drawn])
            token_ids[lines_drawn] = torch.where(is_invalid[lines_drawn], token_ids[lines_drawn], found)
        return token_ids, is_invalid

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


def _dense_floats(logits: torch.Tensor) -> torch.Tensor:
    """What kernels take; without an operation if it is that already."""
    return logits if logits.dtype == torch.float32 and logits.is_contiguous() else logits.float().contiguous()
