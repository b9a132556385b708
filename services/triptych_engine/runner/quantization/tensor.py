"""What checkpoints with quantised weights hold, and what makes modules of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from triptych_engine.runner.quantization.formats import QuantFormat, QuantizedRows

#: Weights that are read at a time: while they are converted they take a few times as many bytes.
_WEIGHTS_AT_A_TIME = 1 << 21
#: Rows are read in multiples of this, which is a multiple of every kernel's number of outputs in a panel.
_ROW_MULTIPLE = 64


def portions(num_rows: int, num_columns: int) -> Iterator[tuple[int, int]]:
    """First row, and row after the last, of the parts in which a weight is converted."""
    step = max(_WEIGHTS_AT_A_TIME // num_columns // _ROW_MULTIPLE, 1) * _ROW_MULTIPLE
    for begin in range(0, num_rows, step):
        yield begin, min(begin + step, num_rows)


@dataclass(frozen=True, slots=True)
class QuantizedTensor:
    """A weight that is not in memory yet."""

    format: QuantFormat
    out_features: int
    in_features: int
    #: Reads rows: first row, row after the last.
    read: Callable[[int, int], QuantizedRows]

    def portions(self) -> Iterator[QuantizedRows]:
        """All rows in order, some at a time."""
        for begin, end in portions(self.out_features, self.in_features):
            yield self.read(begin, end)


class QuantizedModules(Protocol):
    """Makes the modules that a device computes quantised weights with."""

    def linear(self, weights: Sequence[QuantizedTensor], bias: torch.Tensor | None) -> nn.Module:
        """A linear layer whose outputs are those of the weights concatenated. bias: [out] float32."""

    def embedding(self, weight: QuantizedTensor, scale: float) -> nn.Module:
        """An embedding, [...] int64 -> [..., in] float32, of which each value is multiplied by `scale`."""

    def tied_linear(self, embedding: nn.Module) -> nn.Module:
        """The output head that shares an embedding's weight."""

    def experts(self, gate_up: Sequence[nn.Module], down: Sequence[nn.Module], activation: Any) -> nn.Module:
        """The experts of a layer, of layers that `linear` has made. See `ExpertModules`."""
