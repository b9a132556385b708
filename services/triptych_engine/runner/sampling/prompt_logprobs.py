"""Log probabilities of prompt tokens: which logits they need, and how they are computed."""

from __future__ import annotations

import numpy as np
import torch

from triptych_engine.runner.input_batch import InputBatch, StepInputs
from triptych_engine.runner.sampling.logprobs import PendingLogprobs
from triptych_engine.runner.transfer import HostToDevice
from triptych_engine.scheduling.request import SamplingParams


class PromptLogprobs:
    """Which rows of the batch need log probabilities of their prompt, and how many alternatives.

    Args:
        max_num_seqs: number of rows.
        batch: the sequences' tokens.
    """

    def __init__(self, max_num_seqs: int, batch: InputBatch, transfer: HostToDevice) -> None:
        self._batch, self._transfer = batch, transfer
        self._num_top = np.full(max_num_seqs, -1, np.int64)  # row -> alternatives; -1 without log probabilities

    def add(self, row: int, sampling: SamplingParams) -> None:
        """Add a sequence."""
        self._num_top[row] = -1 if sampling.prompt_logprobs is None else sampling.prompt_logprobs

    def owners(self, inputs: StepInputs) -> tuple[np.ndarray, np.ndarray] | None:
        """Flat indices of the tokens whose logits a step needs, including last tokens, and the indices of their sequences. None if
        only the logits of last tokens are needed."""
        wants = self._num_top[inputs.rows] >= 0
        if not wants.any():
            return None
        owners = np.repeat(np.arange(len(inputs.rows)), np.diff(inputs.metadata.query_start_loc))
        wanted = wants[owners] & (inputs.positions + 1 < self._batch.num_prompt_tokens[inputs.rows[owners]])
        wanted[inputs.last_tokens] = True
        indices = np.flatnonzero(wanted)
        return indices, owners[indices]

    def launch(
        self, inputs: StepInputs, logits: torch.Tensor, wanted: np.ndarray, owners: np.ndarray
    ) -> dict[str, PendingLogprobs]:
        """Start computing the log probabilities of a step's prompt tokens; returns them by request id.

        Args:
            logits: [num_wanted, vocab_size].
            wanted, owners: as returned by `owners`.
        """
        pending = {}
        for index in np.unique(owners).tolist():
            row = int(inputs.rows[index])
            num_top = int(self._num_top[row])
            lines = np.flatnonzero((owners == index) & (inputs.positions[wanted] + 1 < self._batch.num_prompt_tokens[row]))
            if num_top < 0 or not len(lines):
                continue
            next_tokens = self._batch.token_ids[row, inputs.positions[wanted[lines]] + 1].astype(np.int64)
            at, token_ids = self._transfer(lines, next_tokens)
            pending[inputs.request_ids[index]] = PendingLogprobs(logits[at], token_ids, [num_top] * len(lines))
        return pending
