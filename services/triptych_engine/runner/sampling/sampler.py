"""Chooses the next token of each sequence from its logits.

Random numbers are a pure function of (seed, position): a seeded request gives the same text with any other requests in its batch,
and also after it was preempted and computed again. Order of operations: penalties, bias and bans on the logits; constraints;
temperature; min-p, top-k, top-p; draw. Nothing waits for the device until the result is requested.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from triptych_engine.runner.cpu.kernels import CpuKernels
from triptych_engine.runner.sampling.choice import Choice, SamplingMetadata
from triptych_engine.runner.sampling.kernels.choice import KernelChoice
from triptych_engine.runner.sampling.logprobs import Logprobs, PendingLogprobs
from triptych_engine.runner.sampling.tensors.choice import TensorChoice
from triptych_engine.runner.transfer import Fetch, HostToDevice, fetch
from triptych_engine.scheduling.request import SamplingParams, TokenLogprobs


@dataclass(slots=True)
class SampleResult:
    """The results of all lines."""

    token_ids: np.ndarray  # [num_lines] int64
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)  # line -> entry, for rows that need them
    invalid: list[int] = field(default_factory=list)  # lines whose logits hold NaN or nothing but -inf


@dataclass(frozen=True, slots=True)
class PendingSample:
    """Sampled tokens, while they are copied from the device."""

    #: [num_lines] int64, on the device.
    token_ids: torch.Tensor
    _fetch: Fetch
    _logprobs: tuple[np.ndarray, PendingLogprobs] | None

    def result(self) -> SampleResult:
        """Wait for the tokens."""
        token_ids, invalid = self._fetch()
        logprobs = {}
        if self._logprobs is not None:
            lines, pending = self._logprobs
            logprobs = dict(zip(lines.tolist(), pending.entries(), strict=True))
        return SampleResult(token_ids, logprobs, np.flatnonzero(invalid).tolist())


class Sampler:
    """Sampling state by row of the batch. A feature that no row of a step uses costs that step only one array lookup.

    Args:
        max_num_seqs: number of rows.
        kernels: CPU kernels; None if the logits are not on a CPU or the kernels are not available.
    """

    def __init__(self, max_num_seqs: int, device: torch.device, kernels: CpuKernels | None = None) -> None:
        transfer = HostToDevice(device)
        self._choice: Choice
        if kernels is not None:
            self._choice = KernelChoice(max_num_seqs, kernels.sampling)
        else:
            self._choice = TensorChoice(max_num_seqs, device, transfer)
        self._logprobs = Logprobs(max_num_seqs, transfer, kernels)

    def add(self, row: int, sampling: SamplingParams, token_ids: list[int], num_prompt_tokens: int) -> None:
        """Add a sequence in a free row. Does not wait for the device, which may still compute earlier steps.

        Args:
            token_ids: its prompt and, after a preemption, its output so far.
        """
        self._choice.add(row, sampling, token_ids, num_prompt_tokens)
        self._logprobs.add(row, sampling)

    def remove(self, row: int) -> None:
        """Remove the sequence in a row."""
        self._choice.remove(row)

    def sample(self, logits: torch.Tensor, metadata: SamplingMetadata) -> PendingSample:
        """Draw a token for each line, without waiting for the device.

        Args:
            logits: [num_lines, vocab_size], any float type. Those of float32 may be edited in place.
        """
        rows = metadata.idx_mapping
        wanted = self._logprobs.lines(rows)
        chosen = self._choice.choose(logits, metadata, wanted)
        logprobs = None
        if len(wanted):
            logprobs = self._logprobs.launch(chosen.raw, chosen.raw_lines, chosen.token_ids, wanted, rows)
        return PendingSample(chosen.token_ids, fetch(chosen.token_ids, chosen.is_invalid), logprobs)
