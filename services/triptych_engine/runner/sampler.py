"""Chooses the next token of each sequence from its logits.

Random numbers are a pure function of (seed, position): a seeded request gives the same text whatever shares its batch, and after
it was preempted and computed again. Order of operations: penalties, bias and bans on the logits; temperature; min-p, top-k,
top-p; draw.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from triptych_engine.request import SamplingParams, TokenLogprobs
from triptych_engine.runner.cpu_kernels import CpuKernels

#: Candidates that are sorted first when top-p or min-p cuts the distribution; widened until the cut lies inside.
_FIRST_CANDIDATES = 256


def uniform(seeds: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """One number in [0, 1) for each (seed, position), by SplitMix64 (Steele, Lea, Flood 2014).

    Args:
        seeds, positions: [n] uint64.

    Returns:
        [n] float64.
    """
    with np.errstate(over="ignore"):
        x = _mix(seeds) + (positions + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        return (_mix(x) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


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


@dataclass(slots=True)
class SampleResult:
    """For each row that was asked for, in order."""

    token_ids: np.ndarray  # [n] int64
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)  # index -> of those that asked for them
    invalid: list[int] = field(default_factory=list)  # indices whose logits hold NaN or nothing but -inf


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
        self._device = device
        self._states: dict[int, _RowState] = {}  # row -> state
        self._temperature = np.zeros(max_num_seqs, np.float32)
        self._edits = np.zeros(max_num_seqs, np.bool_)  # rows whose logits are changed before anything else
        self._wants_logprobs = np.zeros(max_num_seqs, np.bool_)

    def add(self, row: int, sampling: SamplingParams, token_ids: list[int], num_prompt_tokens: int) -> None:
        """Take up a sequence; `token_ids` are its prompt and, after a preemption, its output so far."""
        state = _RowState(sampling, len(token_ids) - num_prompt_tokens)
        self._states[row] = state
        self._temperature[row] = sampling.temperature
        self._wants_logprobs[row] = sampling.logprobs is not None
        if sampling.presence_penalty or sampling.frequency_penalty or sampling.repetition_penalty != 1.0:
            output = torch.tensor(token_ids[num_prompt_tokens:], dtype=torch.int64, device=self._device)
            state.output_counts = torch.bincount(output, minlength=self._vocab_size).to(torch.int32)
            state.seen = torch.zeros(self._vocab_size, dtype=torch.bool, device=self._device)
            state.seen[torch.tensor(token_ids, dtype=torch.int64, device=self._device)] = True
        state.bias = self._bias(sampling)
        if sampling.min_tokens and sampling.stop_token_ids:
            state.stop_token_ids = torch.tensor(sorted(sampling.stop_token_ids), device=self._device)
        self._edits[row] = any(x is not None for x in (state.seen, state.bias, state.stop_token_ids))

    def _bias(self, sampling: SamplingParams) -> torch.Tensor | None:
        if not (sampling.logit_bias or sampling.allowed_token_ids or sampling.bad_token_ids):
            return None
        bias = torch.zeros(self._vocab_size, device=self._device)
        if sampling.logit_bias:
            ids = torch.tensor(list(sampling.logit_bias), device=self._device)
            bias[ids] = torch.tensor(list(sampling.logit_bias.values()), device=self._device)
        if sampling.allowed_token_ids:
            banned = torch.ones(self._vocab_size, dtype=torch.bool, device=self._device)
            banned[list(sampling.allowed_token_ids)] = False
            bias[banned] = float("-inf")
        if sampling.bad_token_ids:
            bias[list(sampling.bad_token_ids)] = float("-inf")
        return bias

    def remove(self, row: int) -> None:
        self._states.pop(row, None)

    def num_prompt_logprobs(self, row: int) -> int | None:
        """Alternatives to report per prompt token; None when they were not asked for."""
        return self._states[row].sampling.prompt_logprobs

    def sample(self, logits: torch.Tensor, rows: np.ndarray) -> SampleResult:
        """Draw a token for each row.

        Args:
            logits: [n, vocab_size], any float type; not changed.
            rows: [n] row of each line of logits.
        """
        raw = logits
        if self._edits[rows].any():
            logits = self._edited(logits.float().clone(), rows)
        if self._kernels is not None and logits.dtype == torch.float32:
            best, greedy = self._kernels.argmax(logits.contiguous())
        else:
            best, greedy = logits.max(-1)
        invalid = (~torch.isfinite(best)).nonzero().flatten().tolist()
        token_ids = greedy.cpu().numpy()
        drawn = np.flatnonzero(self._temperature[rows] > 0)
        if invalid:
            drawn = np.setdiff1d(drawn, invalid)
        if len(drawn):
            token_ids[drawn] = self._draw(logits[torch.from_numpy(drawn).to(self._device)].float(), rows[drawn])
        result = SampleResult(token_ids, invalid=invalid)
        for index in np.flatnonzero(self._wants_logprobs[rows]).tolist():
            count = self._states[int(rows[index])].sampling.logprobs or 0
            result.logprobs[index] = gather_logprobs(raw[index : index + 1], token_ids[index : index + 1], count)[0]
        for row, token_id in zip(rows.tolist(), token_ids.tolist(), strict=True):
            self._note(self._states[row], token_id)
        return result

    def _note(self, state: _RowState, token_id: int) -> None:
        state.num_output_tokens += 1
        if state.output_counts is not None and state.seen is not None:
            state.output_counts[token_id] += 1
            state.seen[token_id] = True

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

    def _draw(self, logits: torch.Tensor, rows: np.ndarray) -> np.ndarray:
        """Draw from softmax(logits / temperature), cut by min-p, top-k and top-p. logits: [n, vocab_size] float32."""
        states = [self._states[row] for row in rows.tolist()]
        seeds = np.array([state.sampling.seed for state in states], np.uint64)
        positions = np.array([state.num_output_tokens for state in states], np.uint64)
        numbers = torch.from_numpy(uniform(seeds, positions)).to(self._device)
        # A low temperature may overflow; -inf has to stay what it is.
        logits = (logits / torch.from_numpy(self._temperature[rows]).to(self._device)[:, None]).clamp(
            max=torch.finfo(torch.float32).max
        )
        cut = np.array([s.sampling.top_k > 0 or s.sampling.top_p < 1 or s.sampling.min_p > 0 for s in states])
        token_ids = np.empty(len(rows), np.int64)
        whole = np.flatnonzero(~cut)
        if len(whole):
            lines = torch.from_numpy(whole).to(self._device)
            token_ids[whole] = _pick(logits[lines].softmax(-1), numbers[lines]).cpu().numpy()
        for index in np.flatnonzero(cut).tolist():
            token_ids[index] = _draw_cut(logits[index], states[index].sampling, numbers[index])
        return token_ids


def _pick(weights: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Invert the distribution function: weights [n, k] (not normalised), numbers [n] in [0, 1) -> index [n]."""
    cumulative = weights.double().cumsum(-1)
    total = cumulative[:, -1:]
    index = torch.searchsorted(cumulative, numbers[:, None] * total, right=True)[:, 0]
    # Rounding could point past the last token that has any weight.
    last = (weights > 0).long().cumsum(-1).argmax(-1)
    return torch.minimum(index, last)


def _draw_cut(logits: torch.Tensor, sampling: SamplingParams, number: torch.Tensor) -> int:
    """Draw one token of those that min-p, top-k and top-p leave.

    Only the likeliest candidates are sorted; their number grows until the cut lies among them, so the result is that of a full
    sort.
    """
    vocab_size = logits.shape[-1]
    log_total = logits.logsumexp(-1)
    num_candidates = min(vocab_size, sampling.top_k or _FIRST_CANDIDATES)
    while True:
        values, ids = logits.topk(num_candidates)
        probabilities = (values - log_total).double().exp()
        keep = probabilities >= sampling.min_p * probabilities[0]
        all_survivors_seen = bool(sampling.top_k) or not bool(keep[-1]) or num_candidates == vocab_size
        # Mass of what top-k and min-p leave: known once all of it was seen; without min-p it is 1.
        total = probabilities[keep].sum() if all_survivors_seen else probabilities.new_ones(())
        before = probabilities.cumsum(-1) - probabilities
        keep_top_p = keep & (before < sampling.top_p * total)
        cut_is_inside = not bool(keep_top_p[-1])
        if all_survivors_seen or (cut_is_inside and not sampling.min_p):
            break
        num_candidates = min(vocab_size, num_candidates * 8)
    keep_top_p[0] = True
    return int(ids[_pick((probabilities * keep_top_p)[None], number[None])[0]])


def gather_logprobs(logits: torch.Tensor, token_ids: np.ndarray, num_top: int) -> list[TokenLogprobs]:
    """Log probability, rank and the likeliest alternatives of a token at each position.

    Args:
        logits: [n, vocab_size], of the model, before penalties and temperature.
        token_ids: [n].
        num_top: alternatives to report.
    """
    logprobs = logits.float().log_softmax(-1)
    chosen = logprobs.gather(-1, torch.from_numpy(token_ids).to(logits.device)[:, None])
    ranks = (logprobs > chosen).sum(-1) + 1
    values, ids = logprobs.topk(min(num_top, logprobs.shape[-1])) if num_top else (logprobs[:, :0], logprobs[:, :0].long())
    columns = (token_ids.tolist(), chosen[:, 0].tolist(), ranks.tolist(), ids.tolist(), values.tolist())
    return [
        TokenLogprobs(token_id, logprob, rank, tuple(top_ids), tuple(top))
        for token_id, logprob, rank, top_ids, top in zip(*columns, strict=True)
    ]
