"""Modules of which each rank has a share, and what the ranks tell each other after them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from triptych_engine.runner.parallel.group import RankGroup


class RowParallelLinear(nn.Module):
    """A linear layer whose inputs are divided among the ranks: the sum of all ranks' outputs.

    Args:
        linear: with the rank's columns of the weight. Only one rank's bias counts.
        columns: the inputs that are this rank's, if it gets all of them; None if it gets its own.
    """

    def __init__(self, linear: nn.Module, group: RankGroup, columns: tuple[int, int] | None = None) -> None:
        super().__init__()
        self.linear, self._columns = linear, columns
        #: The layer's output, given the rank's own. It holds no weight, so whatever packs `linear` can keep it.
        self.sum = group.all_reduce

    @property
    def takes_all(self) -> bool:
        """Whether it gets the inputs of all ranks."""
        return self._columns is not None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.sum(self.linear(x if self._columns is None else x[..., slice(*self._columns)]))


class GatheredLinear(nn.Module):
    """A linear layer whose outputs are divided among the ranks. All ranks get all outputs.

    Args:
        linear: with the rank's rows of the weight.
        sizes: number of outputs of each rank.
    """

    def __init__(self, linear: nn.Module, group: RankGroup, sizes: Sequence[int]) -> None:
        super().__init__()
        self.linear, self._group, self._sizes = linear, group, sizes

    def with_linear(self, linear: nn.Module) -> GatheredLinear:
        """The same with another layer that has the same weight."""
        return GatheredLinear(linear, self._group, self._sizes)

    def join(self, own: torch.Tensor) -> torch.Tensor:
        """The outputs of all ranks, given the rank's own."""
        return self._group.all_gather(own, self._sizes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.join(self.linear(x))


class VocabParallelEmbedding(nn.Module):
    """An embedding of which each rank has the rows of some tokens.

    Args:
        embedding: with the rank's rows.
        rows: first token and end of the rank's.
    """

    def __init__(self, embedding: nn.Module, group: RankGroup, rows: tuple[int, int]) -> None:
        super().__init__()
        self.embedding, self._group, self._rows = embedding, group, rows

    @property
    def weight(self) -> torch.Tensor:
        """[tokens of the rank, hidden_size]"""
        return self.embedding.weight  # type: ignore[return-value]

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        begin, end = self._rows
        is_own = (token_ids >= begin) & (token_ids < end)
        embedded = self.embedding((token_ids - begin).clamp(0, end - begin - 1))
        return self._group.all_reduce(embedded.masked_fill(~is_own[..., None], 0))
