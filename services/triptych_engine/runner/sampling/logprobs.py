"""Log probabilities of output tokens, if a request asks for them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from triptych_engine.runner.cpu.kernels import CpuKernels
from triptych_engine.runner.transfer import Fetch, HostToDevice, fetch
from triptych_engine.scheduling.request import SamplingParams, TokenLogprobs


class PendingLogprobs:
    """Log probability, rank and the likeliest alternatives of a token at each position, while they are copied from the device.

    Args:
        logits: [n, vocab_size], of the model, before penalties and temperature.
        token_ids: [n] int64.
        num_top: alternatives to report for each position [n].
        lines: lines of the logits, [n] int64; by default all.
        kernels: CPU kernels; None if the logits are not on a CPU or the kernels are not available.
    """

    def __init__(
        self,
        logits: torch.Tensor,
        token_ids: torch.Tensor,
        num_top: Sequence[int],
        lines: torch.Tensor | None = None,
        kernels: CpuKernels | None = None,
    ) -> None:
        self._num_top = num_top
        most = min(max(num_top, default=0), logits.shape[-1])
        if kernels is not None and lines is not None:
            parts: tuple[torch.Tensor, ...] = kernels.sampling.logprobs(logits.float().contiguous(), lines, token_ids, most)
        else:
            parts = _logprobs(logits if lines is None else logits[lines], token_ids, most)
        self._fetch: Fetch = fetch(token_ids, *parts)

    def entries(self) -> list[TokenLogprobs]:
        """Wait for the entries; one for each position."""
        columns = (array.tolist() for array in self._fetch())
        return [
            TokenLogprobs(token_id, logprob, rank, tuple(top_ids[:num_top]), tuple(top[:num_top]))
            for token_id, logprob, rank, top_ids, top, num_top in zip(*columns, self._num_top, strict=True)
        ]


def _logprobs(logits: torch.Tensor, token_ids: torch.Tensor, num_top: int) -> tuple[torch.Tensor, ...]:
    """Log probability, rank, and ids and log probabilities of the likeliest tokens, by line."""
    logprobs = logits.float().log_softmax(-1)
    chosen = logprobs.gather(-1, token_ids[:, None])
    ranks = (logprobs > chosen).sum(-1) + 1
    values, ids = logprobs.topk(num_top) if num_top else (logprobs[:, :0], logprobs[:, :0].long())
    return chosen[:, 0], ranks, ids, values


class Logprobs:
    """Which rows of the batch need log probabilities of their output, and how many alternatives.

    Args:
        max_num_seqs: number of rows.
    """

    def __init__(self, max_num_seqs: int, transfer: HostToDevice, kernels: CpuKernels | None = None) -> None:
        self._transfer, self._kernels = transfer, kernels
        self._num_top = np.full(max_num_seqs, -1, np.int64)  # row -> alternatives; -1 without log probabilities

    def add(self, row: int, sampling: SamplingParams) -> None:
        """Add a sequence."""
        self._num_top[row] = -1 if sampling.logprobs is None else sampling.logprobs

    def lines(self, idx_mapping: np.ndarray) -> np.ndarray:
        """The lines that need log probabilities. idx_mapping: [num_lines] line -> row."""
        return np.flatnonzero(self._num_top[idx_mapping] >= 0)

    def launch(
        self, logits: torch.Tensor, logits_lines: np.ndarray, token_ids: torch.Tensor, lines: np.ndarray, idx_mapping: np.ndarray
    ) -> tuple[np.ndarray, PendingLogprobs]:
        """Start computing the log probabilities of sampled tokens.

        Args:
            logits: [n, vocab_size] of the model, before penalties and temperature.
            logits_lines: [num_wanted] where the logits of each wanted line are among these.
            token_ids: [num_lines] int64.
            lines: [num_wanted] the lines that need log probabilities.
            idx_mapping: [num_lines] line -> row.

        Returns:
            The lines, and their log probabilities.
        """
        of_logits, of_tokens = self._transfer(logits_lines, lines)
        num_top = self._num_top[idx_mapping[lines]].tolist()
        return lines, PendingLogprobs(logits, token_ids[of_tokens], num_top, of_logits, self._kernels)
