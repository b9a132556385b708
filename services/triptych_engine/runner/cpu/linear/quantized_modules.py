"""The modules of checkpoints with quantised weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import nn

from triptych_engine.runner.cpu.kernels import CpuKernels
from triptych_engine.runner.cpu.linear.experts import KernelExperts
from triptych_engine.runner.cpu.linear.quant import QuantEmbedding, QuantLinear
from triptych_engine.runner.cpu.quant_kernels import PackedQuant
from triptych_engine.runner.quantization.experts import Activation, ExpertModules
from triptych_engine.runner.quantization.tensor import QuantizedTensor


class CpuQuantizedModules:
    """See `QuantizedModules`.

    Args:
        batch_invariant: a row's result must not depend on the other rows.
    """

    def __init__(self, kernels: CpuKernels, *, batch_invariant: bool = False) -> None:
        self._all, self._kernels = kernels, kernels.quant_kernels(batch_invariant=batch_invariant)

    def linear(self, weights: Sequence[QuantizedTensor], bias: torch.Tensor | None) -> QuantLinear:
        packed = PackedQuant.join([self._pack(weight) for weight in weights])
        sizes = [weight.out_features for weight in weights]
        return QuantLinear(packed, None if bias is None else self._kernels.pad_bias(bias.split(sizes)), self._kernels)

    def embedding(self, weight: QuantizedTensor, scale: float) -> QuantEmbedding:
        return QuantEmbedding(self._pack(weight), self._kernels, scale)

    def tied_linear(self, embedding: nn.Module) -> QuantLinear:
        return QuantLinear(cast(QuantEmbedding, embedding).packed, None, self._kernels)

    def experts(self, gate_up: Sequence[nn.Module], down: Sequence[nn.Module], activation: Activation) -> ExpertModules:
        return KernelExperts(gate_up, down, activation, self._all)

    def _pack(self, weight: QuantizedTensor) -> PackedQuant:
        return self._kernels.pack(weight.format, weight.out_features, weight.in_features, weight.portions())
