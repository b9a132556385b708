"""Chooses the next token of each sequence from its logits.

Random numbers are a pure function of (seed, position): a seeded request gives the same text whatever shares its batch, and after
it was preempted and computed again. Order of operations: penalties, bias and bans on the logits; temperature; min-p, top-k,
top-p; draw. Nothing waits for the device before the result is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from triptych_engine.runner.cpu.kernels import CpuKernels
from triptych_engine.runner.sampling.logprobs import PendingLogprobs
from triptych_engine.runner.sampling.sampling_ops import draw, draw_cut, is_cut, uniform
from triptych_engine.runner.transfer import Fetch, HostToDevice, fetch
from triptych_engine.scheduling.request import SamplingParams, TokenLogprobs


@dataclass(slots=True)
class _RowState:
    """What the sampler keeps of one sequence."""

    sampling: SamplingParams
    num_output_tokens: int
    #: [vocab] int32 counts of output tokens, [vocab] bool seen in prompt or output; only where penalties need them.
    output_counts: torch.Tensor | None = None
    seen: torch.Tensor | None = None
    #: Added to the logits: bias and bans; only where there are any.
    bias: torch.Tensor | None = None
    stop_token_ids: torch.Tensor | None = None

    def note(self, token_ids: torch.Tensor, index: int) -> None:
        """Take the sampled token that stands there, on the device."""
        self.num_output_tokens += 1
        if self.output_counts is not None and self.seen is not None:
            token_id = token_ids[index : index + 1]
            self.output_counts.index_add_(0, token_id, torch.ones_like(token_id, dtype=torch.int32))
            self.seen.index_fill_(0, token_id, True)


@dataclass(slots=True)
class SampleResult:
    """For each row that was asked for, in order."""

    token_ids: np.ndarray  # [n] int64
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)  # index -> of those that asked for them
    invalid: list[int] = field(default_factory=list)  # indices whose logits hold NaN or nothing but -inf


@dataclass(frozen=True, slots=True)
class PendingSample:
    """Sampled tokens, on their way from the device."""

    #: [n] int64, on the device.
    token_ids: torch.Tensor
    _fetch: Fetch
    _logprobs: dict[int, PendingLogprobs]

    def result(self) -> SampleResult:
        """Wait for them."""
        token_ids, invalid = self._fetch()
        logprobs = {index: pending.entries()[0] for index, pending in self._logprobs.items()}
        return SampleResult(token_ids, logprobs, np.flatnonzero(invalid).tolist())


class Sampler:
    """Sampling state by row of the batch.

    Args:
        max_num_seqs: rows.
        vocab_size: width of the logits.
        kernels: CPU kernels, where the logits are on the CPU and they could be had.
    """

    def __init__(self, max_num_seqs: int, vocab_size: int, device: torch.device, kernels: CpuKernels | None = None) -> None:
        self._kernels = kernels
        self._vocab_size = vocab_size
        self._transfer = HostToDevice(device)
        self._states: dict[int, _RowState] = {}  # row -> state
        self._temperature = np.zeros(max_num_seqs, np.float32)
        self._edits = np.zeros(max_num_seqs, np.bool_)  # rows whose logits are changed before anything else
        self._wants_logprobs = np.zeros(max_num_seqs, np.bool_)

    def add(self, row: int, sampling: SamplingParams, token_ids: list[int], num_prompt_tokens: int) -> None:
        """Take up a sequence; `token_ids` are its prompt and, after a preemption, its output so far. Does not wait for the device,
        which may be at the steps before."""
        state = _RowState(sampling, len(token_ids) - num_prompt_tokens)
        self._states[row] = state
        self._temperature[row] = sampling.temperature
        self._wants_logprobs[row] = sampling.logprobs is not None
        if sampling.presence_penalty or sampling.frequency_penalty or sampling.repetition_penalty != 1.0:
            counts = np.bincount(np.array(token_ids[num_prompt_tokens:], np.int64), minlength=self._vocab_size).astype(np.int32)
            seen = np.zeros(self._vocab_size, np.bool_)
            seen[token_ids] = True
            state.output_counts, state.seen = self._transfer(counts, seen)
        state.bias = self._bias(sampling)
        if sampling.min_tokens and sampling.stop_token_ids:
            (state.stop_token_ids,) = self._transfer(np.array(sorted(sampling.stop_token_ids), np.int64))
        self._edits[row] = any(x is not None for x in (state.seen, state.bias, state.stop_token_ids))

    def _bias(self, sampling: SamplingParams) -> torch.Tensor | None:
        if not (sampling.logit_bias or sampling.allowed_token_ids or sampling.bad_token_ids):
            return None
        bias = np.zeros(self._vocab_size, np.float32)
        bias[list(sampling.logit_bias)] = list(sampling.logit_bias.values())
        if sampling.allowed_token_ids:
            allowed = list(sampling.allowed_token_ids)
            kept = bias[allowed]
            bias[:] = float("-inf")
            bias[allowed] = kept
        bias[list(sampling.bad_token_ids)] = float("-inf")
        (on_device,) = self._transfer(bias)
        return on_device

    def remove(self, row: int) -> None:
        self._states.pop(row, None)

    def num_prompt_logprobs(self, row: int) -> int | None:
        """Alternatives to report per prompt token; None when they were not asked for."""
        return self._states[row].sampling.prompt_logprobs

    def sample(self, logits: torch.Tensor, rows: np.ndarray) -> SampleResult:
        """`launch`, and wait for what comes of it."""
        return self.launch(logits, rows).result()

    def launch(self, logits: torch.Tensor, rows: np.ndarray) -> PendingSample:
        """Draw a token for each row, without waiting for the device.

        Args:
            logits: [n, vocab_size], any float type; not changed.
            rows: [n] row of each line of logits.
        """
        raw = logits
        if self._edits[rows].any():
            logits = self._edited(logits.float().clone(), rows)
        if self._kernels is not None and logits.dtype == torch.float32:
            best, token_ids = self._kernels.argmax(logits.contiguous())
        else:
            best, token_ids = logits.max(-1)
        invalid = ~torch.isfinite(best)
        drawn = np.flatnonzero(self._temperature[rows] > 0)
        if len(drawn):
            (lines,) = self._transfer(drawn)
            chosen = self._draw(logits[lines].float(), rows[drawn])
            token_ids[lines] = torch.where(invalid[lines], token_ids[lines], chosen)
        logprobs = {}
        for index in np.flatnonzero(self._wants_logprobs[rows]).tolist():
            count = self._states[int(rows[index])].sampling.logprobs or 0
            logprobs[index] = PendingLogprobs(raw[index : index + 1], token_ids[index : index + 1], count)
        for index, row in enumerate(rows.tolist()):
            self._states[row].note(token_ids, index)
        return PendingSample(token_ids, fetch(token_ids, invalid), logprobs)

    def _edited(self, logits: torch.Tensor, rows: np.ndarray) -> torch.Tensor:
        for index in np.flatnonzero(self._edits[rows]).tolist():
            state, line = self._states[int(rows[index])], logits[index]
            sampling = state.sampling
            if state.seen is not None and state.output_counts is not None:
                if sampling.repetition_penalty != 1.0:
                    penalised = torch.where(line > 0, line / sampling.repetition_penalty, line * sampling.repetition_penalty)
                    line.copy_(torch.where(state.seen, penalised, line))
                line -= sampling.frequency_penalty * state.output_counts
                line -= sampling.presence_penalty * (state.output_counts > 0)
            if state.bias is not None:
                line += state.bias
            if state.stop_token_ids is not None and state.num_output_tokens < sampling.min_tokens:
                line[state.stop_token_ids] = float("-inf")
        return logits

    def _draw(self, logits: torch.Tensor, rows: np.ndarray) -> torch.Tensor:
        """Draw from softmax(logits / temperature), cut by min-p, top-k and top-p. logits: [n, vocab_size] float32."""
        states = [self._states[row] for row in rows.tolist()]
        seeds = np.array([state.sampling.seed for state in states], np.uint64)
        positions = np.array([state.num_output_tokens for state in states], np.uint64)
        cut = np.array([is_cut(state.sampling) for state in states])
        numbers, temperature, cut_lines, whole_lines = self._transfer(
            uniform(seeds, positions), self._temperature[rows], np.flatnonzero(cut), np.flatnonzero(~cut)
        )
        # A low temperature may overflow; -inf has to stay what it is.
        logits = (logits / temperature[:, None]).clamp(max=torch.finfo(torch.float32).max)
        if not cut.any():
            return draw(logits, numbers)
        params = [state.sampling for state, is_one in zip(states, cut.tolist(), strict=True) if is_one]
        token_ids = torch.empty(len(rows), dtype=torch.int64, device=logits.device)
        token_ids[cut_lines] = draw_cut(logits[cut_lines], numbers[cut_lines], params, self._transfer)
        if len(whole_lines):
            token_ids[whole_lines] = draw(logits[whole_lines], numbers[whole_lines])
        return token_ids
