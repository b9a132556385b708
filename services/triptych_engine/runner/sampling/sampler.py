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
from triptych_engine.runner.sampling.bans import Bans
from triptych_engine.runner.sampling.bias import Bias
from triptych_engine.runner.sampling.draws import Draws
from triptych_engine.runner.sampling.logprobs import Logprobs, PendingLogprobs
from triptych_engine.runner.sampling.penalties import Penalties
from triptych_engine.runner.sampling.token_rules import StepRules
from triptych_engine.runner.transfer import Fetch, HostToDevice, fetch
from triptych_engine.scheduling.request import SamplingParams, TokenLogprobs


@dataclass(frozen=True, slots=True)
class SamplingMetadata:
    """The rows of the batch for which a step samples. A row may have several lines, one for each token that is drawn for it."""

    idx_mapping: np.ndarray  # [num_lines] int64, line of the logits -> row of the batch
    positions: np.ndarray  # [num_lines] int64, number of output tokens of the sequence before the one that is drawn
    rules: StepRules | None = None  # of rows with a constraint or bad token sequences


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
        self._transfer = HostToDevice(device)
        self._draws = Draws(max_num_seqs, self._transfer, kernels)
        self._penalties = Penalties(max_num_seqs, device, self._transfer)
        self._bias = Bias(max_num_seqs, self._transfer)
        self._bans = Bans(max_num_seqs, self._transfer)
        self._logprobs = Logprobs(max_num_seqs, self._transfer, kernels)
        self._raw = torch.empty(0, 0)

    def add(self, row: int, sampling: SamplingParams, token_ids: list[int], num_prompt_tokens: int) -> None:
        """Add a sequence in a free row. Does not wait for the device, which may still compute earlier steps.

        Args:
            token_ids: its prompt and, after a preemption, its output so far.
        """
        self._draws.add(row, sampling)
        self._penalties.add(row, sampling, token_ids, num_prompt_tokens)
        self._bias.add(row, sampling)
        self._bans.add(row, sampling)
        self._logprobs.add(row, sampling)

    def remove(self, row: int) -> None:
        """Remove the sequence in a row."""
        for state in (self._penalties, self._bias, self._bans):
            state.remove(row)

    def sample(self, logits: torch.Tensor, metadata: SamplingMetadata) -> PendingSample:
        """Draw a token for each line, without waiting for the device.

        Args:
            logits: [num_lines, vocab_size], any float type. Those of float32 are edited in place.
        """
        rows = metadata.idx_mapping
        wants_logprobs = self._logprobs.lines(rows)
        raw, raw_lines = logits, wants_logprobs
        if self._has_edits(metadata):
            if len(wants_logprobs) and logits.dtype == torch.float32:
                raw, raw_lines = self._kept(logits, wants_logprobs), np.arange(len(wants_logprobs))
            logits = self._edited(logits, metadata)
        token_ids, is_invalid = self._draws.choose(logits, rows, metadata.positions, metadata.rules)
        logprobs = self._logprobs.launch(raw, raw_lines, token_ids, wants_logprobs, rows) if len(wants_logprobs) else None
        self._penalties.update(token_ids, rows)
        return PendingSample(token_ids, fetch(token_ids, is_invalid), logprobs)

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
            metadata.rules.ban(logits, self._transfer)
        return logits

    def _kept(self, logits: torch.Tensor, lines: np.ndarray) -> torch.Tensor:
        """A copy of some lines, before they are edited. On a CPU its memory is used again in the next step: new memory of this
        size costs several times as much as the copy."""
        if logits.device.type != "cpu":
            (on_device,) = self._transfer(lines)
            return logits[on_device]
        if len(self._raw) < len(lines) or self._raw.shape[1] != logits.shape[1]:
            self._raw = torch.empty(len(lines), logits.shape[1])
        raw = self._raw[: len(lines)]
        # torch's index_select takes thirty times as long with two threads where other processes use the cores, too.
        np.take(logits.numpy(), lines, axis=0, out=raw.numpy(), mode="clip")
        return raw
