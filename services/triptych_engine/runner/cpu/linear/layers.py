"""Linear layers with packed weights that are not quantised."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from triptych_engine.runner.cpu.kernels import CpuKernels
from triptych_engine.runner.fusion.kernels import PackedLinear

#: Number of rows for which oneDNN chooses the layout of packed weights; measured best or near best from 1 to 512 rows.
_PACK_FOR_ROWS = 64


class OneDnnLinear(PackedLinear):
    """The weight is in oneDNN's blocked layout, so no call has to pack it. x and result: [..., features] of the weight's dtype.

    Args:
        batch_invariant: compute a single row as two. oneDNN sums it in another order than several, at least on some CPUs.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, *, batch_invariant: bool = False) -> None:
        super().__init__(weight.shape[1], weight.shape[0])
        self._batch_invariant = batch_invariant
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _PACK_FOR_ROWS)
        self._bias = bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self._batch_invariant and x.numel() == x.shape[-1]:
            return self._multiply(x.reshape(1, -1).repeat(2, 1))[0].view(*x.shape[:-1], -1)
        return self._multiply(x)

    def _multiply(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")


class KernelLinear(PackedLinear):
    """Computed by one of our own kernels, with float32 inputs and outputs. Kernels of decoder layers can include it."""

    #: One of kernels.FORMATS.
    weight_format: str
    #: In the layout of its format; None while the layer does not compute in that format.
    weight: torch.Tensor | None
    bias: torch.Tensor | None  # fp32, padded to whole panels

    def _multiply(self, multiply: Callable[..., torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        """Compute with one of the kernels' products. x: [..., in_features] fp32 or bf16; the result is like x."""
        rows = x.reshape(-1, x.shape[-1]).float()
        if rows.stride(-1) != 1:
            rows = rows.contiguous()
        out = multiply(rows)
        return out.to(x.dtype).view(*x.shape[:-1], self.out_features)


class Bf16Linear(KernelLinear):
    """Weights are bfloat16, and sums float32. x: [..., in_features] fp32 or bf16; the result is like x.

    Args:
        rounds_inputs: if the CPU has bfloat16 instructions, the inputs are rounded to bfloat16. Otherwise the weight is widened.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, kernels: CpuKernels, *, rounds_inputs: bool = True) -> None:
        super().__init__(weight.shape[1], weight.shape[0])
        self.weight_format, self._product = ("bf16", kernels.linear) if rounds_inputs else ("wide", kernels.linear_wide)
        self.weight: torch.Tensor = kernels.pack_linear(weight)
        self.bias = None if bias is None else nn.functional.pad(bias.float(), (0, -len(bias) % kernels.linear_panel))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._multiply(lambda rows: self._product(rows, self.weight, self.bias, self.out_features), x)


class WideHead(nn.Module):
    """The output head: bf16 hidden [..., hidden_size] -> fp32 logits [..., vocab_size], none of them rounded to bf16."""

    def __init__(self, linear: PackedLinear) -> None:
        super().__init__()
        self.linear = linear

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x.float())
