"""Log probabilities of prompts: which logits they need, and what is made of them."""

from __future__ import annotations

import numpy as np
import torch

from triptych_engine.runner.input_batch import InputBatch, StepInputs
from triptych_engine.runner.sampling.logprobs import PendingLogprobs
from triptych_engine.runner.sampling.sampler import Sampler
from triptych_engine.runner.transfer import HostToDevice


class PromptLogprobs:
    """For those sequences that the sampler knows to want them."""

    def __init__(self, batch: InputBatch, sampler: Sampler, transfer: HostToDevice) -> None:
        self._batch, self._sampler, self._transfer = batch, sampler, transfer

    def owners(self, inputs: StepInputs) -> tuple[np.ndarray, np.ndarray] | None:
        """Flat indices of the tokens whose logits a step needs, last tokens included, and whose they are; None where nobody wants
        more than last tokens."""
        wants = [self._sampler.num_prompt_logprobs(row) is not None for row in inputs.rows.tolist()]
        if not any(wants):
            return None
        owners = np.repeat(np.arange(len(inputs.rows)), np.diff(inputs.metadata.query_start_loc))
        wanted = np.array(wants)[owners] & (inputs.positions + 1 < self._batch.num_prompt_tokens[inputs.rows[owners]])
        wanted[inputs.last_tokens] = True
        indices = np.flatnonzero(wanted)
        return indices, owners[indices]

    def launch(
        self, inputs: StepInputs, logits: torch.Tensor, wanted: np.ndarray, owners: np.ndarray
    ) -> dict[str, PendingLogprobs]:
        """Begin to compute those of a step's tokens; by request id.

        Args:
            logits: [num_wanted, vocab_size].
            wanted, owners: as from `owners`.
        """
        pending = {}
        for index in np.unique(owners).tolist():
            row = int(inputs.rows[index])
            num_top = self._sampler.num_prompt_logprobs(row)
            lines = np.flatnonzero((owners == index) & (inputs.positions[wanted] + 1 < self._batch.num_prompt_tokens[row]))
            if num_top is None or not len(lines):
                continue
            next_tokens = self._batch.token_ids[row, inputs.positions[wanted[lines]] + 1].astype(np.int64)
            at, token_ids = self._transfer(lines, next_tokens)
            pending[inputs.request_ids[index]] = PendingLogprobs(logits[at], token_ids, num_top)
        return pending
