"""What checkpoints with quantised weights hold, and what makes modules of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from triptych_engine.runner.quantization.formats import QuantFormat, QuantizedRows

#: Rows that are read at a time. It is a multiple of every kernel's number of outputs in a panel.
ROWS_AT_A_TIME = 4096


@dataclass(frozen=True, slots=True)
class QuantizedTensor:
    """A weight that is not in memory yet."""

    format: QuantFormat
    out_features: int
    in_features: int
    #: Reads rows: first row, row after the last.
    read: Callable[[int, int], QuantizedRows]

    def portions(self) -> Iterator[QuantizedRows]:
        """All rows in order, `ROWS_AT_A_TIME` at a time."""
        for begin in range(0, self.out_features, ROWS_AT_A_TIME):
            yield self.read(begin, min(begin + ROWS_AT_A_TIME, self.out_features))


class QuantizedModules(Protocol):
    """Makes the modules that a device computes quantised weights with."""

    def linear(self, weight: QuantizedTensor, bias: torch.Tensor | None) -> nn.Module:
        """A linear layer. bias: [out] float32."""

    def embedding(self, weight: QuantizedTensor, scale: float) -> nn.Module:
        """An embedding, [...] int64 -> [..., in] float32, of which each value is multiplied by `scale`."""

    def tied_linear(self, embedding: nn.Module) -> nn.Module:
        """The output head that shares an embedding's weight."""
