"""Turns the hidden states of a ragged batch into vectors: one per sequence, or one per token.

A prompt may be computed in several steps. The pooler keeps what it needs of a prompt's earlier chunks: a sum, a maximum, or the
first vector.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from triptych_common.model.pooling import PoolingMode, PoolingModel

from triptych_engine.runner.pooling.heads import Head
from triptych_engine.scheduling.request import PoolingParams


@dataclass(frozen=True, slots=True)
class PooledBatch:
    """The sequences of a ragged batch, one after the other."""

    request_ids: Sequence[str]
    params: Sequence[PoolingParams]
    starts: np.ndarray  # [num_seqs + 1] int64, first token of each sequence in the batch
    positions: np.ndarray  # [num_seqs] int64, position of that token in its prompt
    is_last: np.ndarray  # [num_seqs] bool, whether the prompt ends in this step

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each prompt up to the end of this step, [num_seqs] int64."""
        return self.positions + np.diff(self.starts)

    @property
    def is_whole(self) -> np.ndarray:
        """Whether all of the prompt is in this step, [num_seqs] bool."""
        return self.is_last & (self.positions == 0)


class Pooler:
    """Pools the steps of one runner.

    Args:
        model: how to pool.
        head: what follows the pooling.
    """

    def __init__(self, model: PoolingModel, head: Head) -> None:
        self._modes = model.modes
        self._head = head
        self._partial: dict[str, list[torch.Tensor]] = {}  # request_id -> per mode [hidden_size], of prompts that are not complete
        self._chunks: dict[str, list[torch.Tensor]] = {}  # request_id -> [num_tokens, hidden_size], for vectors of all tokens

    def drop(self, request_id: str) -> None:
        """Forget a request that has ended, or that will be computed again from its start."""
        self._partial.pop(request_id, None)
        self._chunks.pop(request_id, None)

    def pool(self, hidden: torch.Tensor, batch: PooledBatch) -> dict[str, torch.Tensor]:
        """The results of the prompts that end in this step, by request id: float32 [size], or [num_tokens, size].

        Args:
            hidden: [num_tokens, hidden_size].
        """
        pooled = self._pool_tokens(hidden, batch) if any(params.per_token for params in batch.params) else {}
        wanted = [index for index, params in enumerate(batch.params) if not params.per_token]
        if not wanted:
            return pooled
        sums = [_REDUCE[mode](hidden, batch) for mode in self._modes]
        if not batch.is_whole.all():
            self._join_chunks(sums, batch, wanted)
        by_params: dict[tuple[object, ...], list[int]] = {}
        for index in wanted:
            if batch.is_last[index]:
                one = batch.params[index]
                by_params.setdefault((one.dimensions, one.normalize, one.activation), []).append(index)
        for indices in by_params.values():
            rows = torch.as_tensor(indices, device=hidden.device)
            lengths = torch.as_tensor(batch.lengths[indices], device=hidden.device)[:, None]
            settled = [_settle(mode, of_mode[rows], lengths) for mode, of_mode in zip(self._modes, sums, strict=True)]
            finished = self._head.finish(torch.cat(settled, -1), batch.params[indices[0]])
            pooled.update(zip((batch.request_ids[index] for index in indices), finished, strict=True))
        return pooled

    def _join_chunks(self, sums: list[torch.Tensor], batch: PooledBatch, wanted: list[int]) -> None:
        """Add what is known of earlier chunks to the results of this step, and keep the results of prompts that go on."""
        for index in wanted:
            if batch.is_whole[index]:
                continue
            request_id = batch.request_ids[index]
            earlier = self._partial.pop(request_id, None)
            if earlier is not None:
                for mode, of_mode, value in zip(self._modes, sums, earlier, strict=True):
                    of_mode[index] = _join(mode, value, of_mode[index])
            if not batch.is_last[index]:
                self._partial[request_id] = [of_mode[index].clone() for of_mode in sums]

    def _pool_tokens(self, hidden: torch.Tensor, batch: PooledBatch) -> dict[str, torch.Tensor]:
        pooled = {}
        for index, params in enumerate(batch.params):
            if not params.per_token:
                continue
            request_id = batch.request_ids[index]
            chunks = self._chunks.setdefault(request_id, [])
            chunks.append(hidden[batch.starts[index] : batch.starts[index + 1]].float().clone())
            if batch.is_last[index]:
                pooled[request_id] = self._head.finish_tokens(torch.cat(self._chunks.pop(request_id)), params)
        return pooled


def _sequence_of(batch: PooledBatch, device: torch.device) -> torch.Tensor:
    """[num_tokens] the index of each token's sequence."""
    return torch.as_tensor(np.repeat(np.arange(len(batch.params)), np.diff(batch.starts)), device=device)


def _first(hidden: torch.Tensor, batch: PooledBatch) -> torch.Tensor:
    return hidden[torch.as_tensor(batch.starts[:-1], device=hidden.device)].float()


def _last(hidden: torch.Tensor, batch: PooledBatch) -> torch.Tensor:
    return hidden[torch.as_tensor(batch.starts[1:] - 1, device=hidden.device)].float()


def _sum(hidden: torch.Tensor, batch: PooledBatch) -> torch.Tensor:
    total = torch.zeros(len(batch.params), hidden.shape[1], device=hidden.device)
    return total.index_add_(0, _sequence_of(batch, hidden.device), hidden.float())


def _weighted_sum(hidden: torch.Tensor, batch: PooledBatch) -> torch.Tensor:
    """The token at position i counts i + 1 times."""
    offsets = np.repeat(batch.positions - batch.starts[:-1], np.diff(batch.starts))
    weights = torch.as_tensor(np.arange(batch.starts[-1]) + offsets + 1, device=hidden.device)
    return _sum(hidden.float() * weights[:, None], batch)


def _max(hidden: torch.Tensor, batch: PooledBatch) -> torch.Tensor:
    sequence = _sequence_of(batch, hidden.device)[:, None].expand_as(hidden)
    least = torch.full((len(batch.params), hidden.shape[1]), -torch.inf, device=hidden.device)
    return least.scatter_reduce_(0, sequence, hidden.float(), "amax")


#: mode -> what it takes of each sequence's tokens, float32 [num_seqs, hidden_size].
_REDUCE: dict[PoolingMode, Callable[[torch.Tensor, PooledBatch], torch.Tensor]] = {
    "cls": _first,
    "lasttoken": _last,
    "mean": _sum,
    "mean_sqrt_len_tokens": _sum,
    "weightedmean": _weighted_sum,
    "max": _max,
}


def _join(mode: PoolingMode, earlier: torch.Tensor, later: torch.Tensor) -> torch.Tensor:
    """What a mode takes of two chunks of one prompt."""
    if mode == "cls":
        return earlier
    if mode == "lasttoken":
        return later
    return torch.maximum(earlier, later) if mode == "max" else earlier + later


def _settle(mode: PoolingMode, value: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """The result of a mode for whole prompts. lengths: [num_seqs, 1] int64."""
    if mode == "mean":
        return value / lengths
    if mode == "mean_sqrt_len_tokens":
        return value / lengths.sqrt()
    return value / (lengths * (lengths + 1) / 2) if mode == "weightedmean" else value
