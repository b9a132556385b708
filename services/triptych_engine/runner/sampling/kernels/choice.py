"""Chooses tokens with CPU kernels. The logits stay as they are: edits are undone as soon as the token of a line is chosen.

A constrained line draws from the tokens that its constraint accepts. Their mask takes long to compute where many tokens may follow.
So a few tokens are drawn from all tokens first, which costs little more than one. The first that the constraint takes is the token.
Only if it takes none, the mask is computed, and a token is drawn from those that it leaves.

This is rejection sampling, and the tokens come as often as with the mask alone. Let a be the probability of an accepted token, and
r = 1 - a. After n tries P(t) = p(t) * (1 + r + ... + r^(n-1)) + r^n * p(t) / a = p(t) / a. It would be wrong for rows with min-p,
top-k or top-p, which choose among the accepted tokens only. These rows always get a mask. Where the text is forced, its token needs
neither a draw nor a mask.
"""

from __future__ import annotations

import numpy as np
import torch

from triptych_engine.runner.cpu.sampling_kernels import DRAW_ARGS, NOT_FINITE, SamplingKernels
from triptych_engine.runner.sampling.choice import Chosen, SamplingMetadata
from triptych_engine.runner.sampling.kernels.edits import KernelEdits
from triptych_engine.runner.sampling.rules.token_rules import StepRules
from triptych_engine.scheduling.request import SamplingParams

#: Tokens that are drawn for a constrained row before its mask is computed.
_TRIES = 3


class KernelChoice:
    """The state of rows, in the form that kernels take. Implements `Choice`.

    Args:
        max_num_seqs: number of rows.
    """

    def __init__(self, max_num_seqs: int, kernels: SamplingKernels) -> None:
        self._kernels = kernels
        self._seeds = np.zeros(max_num_seqs, np.uint64)
        self._args = np.zeros(max_num_seqs, DRAW_ARGS)  # what of them does not change from step to step
        self._edits = KernelEdits(max_num_seqs, kernels)

    def add(self, row: int, sampling: SamplingParams, token_ids: list[int], num_prompt_tokens: int) -> None:
        is_cut = sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0
        args = self._args[row]
        args["top_k"], args["top_p"], args["min_p"] = sampling.top_k, sampling.top_p, sampling.min_p
        args["temperature"], args["is_cut"] = sampling.temperature, is_cut and sampling.temperature > 0
        self._seeds[row] = sampling.seed
        self._edits.add(row, sampling, token_ids, num_prompt_tokens)

    def remove(self, row: int) -> None:
        self._edits.remove(row)

    def choose(self, logits: torch.Tensor, metadata: SamplingMetadata, kept: np.ndarray) -> Chosen:
        logits = _dense_floats(logits)
        rows, rules = metadata.idx_mapping, metadata.rules
        is_constrained = rules is not None and len(rules.constrained) > 0
        args = self._args[rows]
        args["row"] = np.arange(len(rows))
        args["num_draws"] = 1
        args["mask"] = self._edits.allowed_masks(rows, logits.shape[1])
        edits = self._edits.of_step(rows, metadata.positions, rules)
        if edits is not None:
            args["edits"] = edits.ctypes.data + np.arange(len(rows)) * edits.itemsize
        positions = metadata.positions.astype(np.uint64)
        numbers = self._kernels.uniform(self._seeds[rows], positions, _TRIES + 1 if is_constrained else 1)
        if rules is not None and is_constrained:
            token_ids = self._constrained(logits, rows, rules, args, numbers)
        else:
            token_ids = self._kernels.draw(logits, args, numbers)[:, 0]
        is_invalid = token_ids < 0
        token_ids = np.maximum(token_ids, 0)
        self._edits.count(rows, token_ids)
        return Chosen(torch.from_numpy(token_ids), torch.from_numpy(is_invalid), logits, kept)

    def _constrained(
        self, logits: torch.Tensor, rows: np.ndarray, rules: StepRules, args: np.ndarray, numbers: np.ndarray
    ) -> np.ndarray:
        """[num_lines] int64 tokens; -1 where there is none. numbers: [num_lines, _TRIES + 1]."""
        constrained = rules.constrained
        is_cut = args["is_cut"] > 0
        args["num_draws"][constrained] = np.where(is_cut[constrained], 0, _TRIES)
        drawn = self._kernels.draw(logits, args, numbers)
        token_ids = drawn[:, 0].copy()
        is_bad = drawn[:, 0] == NOT_FINITE
        is_plain = ~is_bad & ~self._edits.applies(rows, rules)
        token_ids[constrained] = rules.constraints.take(rows[constrained], drawn[constrained, :_TRIES], is_plain[constrained])
        refused = constrained[(token_ids[constrained] < 0) & ~is_bad[constrained]]
        if len(refused):
            masks = rules.constraints.masks(rows[refused])
            self._edits.leave_allowed(rows[refused], masks)
            again = args[refused]
            again["num_draws"] = 1
            again["mask"] = masks.words.ctypes.data + np.arange(len(refused)) * masks.words.strides[0]
            next_number = np.where(is_cut[refused], 0, _TRIES)  # the first that no try has used
            drawn = self._kernels.draw(logits, again, numbers[refused, next_number][:, None])
            token_ids[refused] = np.where(masks.ends, masks.end_token_id, drawn[:, 0])
        return token_ids


def _dense_floats(logits: torch.Tensor) -> torch.Tensor:
    """What kernels take; without an operation if it is that already."""
    return logits if logits.dtype == torch.float32 and logits.is_contiguous() else logits.float().contiguous()
