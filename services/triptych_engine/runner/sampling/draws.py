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
from triptych_engine.runner.cpu.sampling_kernels import DRAW_ARGS
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

    def add(self, row: int, sampling: SamplingParams) -> None:
        """Add a sequence."""
        self._temperature[row], self._seeds[row] = sampling.temperature, sampling.seed
        self._cuts[row] = sampling.top_k, sampling.top_p, sampling.min_p
        is_cut = sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0
        self._is_cut[row] = is_cut and sampling.temperature > 0

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
        return self._by_kernels(self._kernels, _dense_floats(logits), rows, positions, rules)

    def _by_kernels(
        self, kernels: CpuKernels, logits: torch.Tensor, rows: np.ndarray, positions: np.ndarray, rules: StepRules | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        best, chosen = kernels.argmax(logits)
        largest, token_ids = best.numpy(), chosen.numpy()
        is_invalid = ~np.isfinite(largest)
        waits = np.zeros(len(rows), np.bool_)  # for its mask
        if rules is not None:
            waits[rules.constrained] = self._is_cut[rows[rules.constrained]] | is_invalid[rules.constrained]
        drawn = np.flatnonzero((self._temperature[rows] > 0) & ~waits & ~is_invalid)
        if len(drawn):
            args = self._args(drawn, rows, positions.astype(np.uint64))
            args["largest"] = largest[drawn]
            token_ids[drawn] = kernels.sampling.draw(logits, args)
        if rules is not None and len(lines := rules.constrained):
            offered = lines[~waits[lines]]
            waits[offered] = ~rules.constraints.take(rows[offered], token_ids[offered])
            if len(refused := np.flatnonzero(waits)):
                masks = rules.constraints.masks(rows[refused])
                masks.allow_ends(logits, refused, self._transfer)
                args = self._args(refused, rows, positions.astype(np.uint64) + _SECOND_DRAW)
                args["mask"] = masks.words.ctypes.data + np.arange(len(refused)) * masks.words.strides[0]
                drawn_again = kernels.sampling.draw(logits, args)
                is_invalid[refused] = np.isnan(largest[refused]) | (drawn_again < 0)
                token_ids[refused] = np.maximum(drawn_again, 0)
        return chosen, torch.from_numpy(is_invalid)

    def _args(self, lines: np.ndarray, rows: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """[n] DRAW_ARGS of some lines, which still lack the mask or the largest logit. positions: [num_lines] uint64."""
        args = np.zeros(len(lines), DRAW_ARGS)
        rows = rows[lines]
        args["row"], args["number"] = lines, uniform(self._seeds[rows], positions[lines])
        args["top_k"], args["top_p"], args["min_p"] = self._cuts[rows].T
        args["temperature"], args["is_cut"] = self._temperature[rows], self._is_cut[rows]
        return args

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
