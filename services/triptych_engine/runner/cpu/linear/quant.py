"""Linear layers and embeddings with weights of a few bits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import nn

from triptych_engine.runner.cpu.linear.layers import KernelLinear
from triptych_engine.runner.cpu.quant_kernels import PackedQuant, QuantKernels
from triptych_engine.runner.quantization.formats import QuantFormat, QuantizedRows, quantize_rows
from triptych_engine.runner.quantization.tensor import portions


class QuantLinear(KernelLinear):
    """A layer with a quantised weight. x: [..., in_features] fp32 or bf16; the result is like x.

    Until `quantize` is called, inputs are not rounded, so that modules that are built from it can be compared with those that they
    replace. From then on, inputs are rounded, see `QuantKernels.linear`.
    """

    def __init__(self, packed: PackedQuant, bias: torch.Tensor | None, kernels: QuantKernels) -> None:
        """bias: as of `QuantKernels.pad_bias`."""
        super().__init__(packed.in_features, packed.out_features)
        self._kernels, self.weight_format = kernels, kernels.weight_format
        self.packed, self.weight, self.bias = packed, None, bias

    @classmethod
    def join(cls, layers: Sequence[QuantLinear]) -> QuantLinear:
        """One layer for several; either all or none have a bias. No weight is copied."""
        if len(layers) == 1:
            return layers[0]
        packed = PackedQuant.join([layer.packed for layer in layers])
        biases = [layer.bias for layer in layers if layer.bias is not None]
        return cls(packed, torch.cat(biases) if biases else None, layers[0]._kernels)

    def quantize(self) -> tuple[int, int]:
        """Quantise inputs from now on; returns the bytes of the weight before and after."""
        self.weight = self.packed.table
        return self.packed.nbytes, self.packed.nbytes

    def dequantize(self) -> torch.Tensor:
        """The weight, [out_features, in_features] fp32."""
        return self._kernels.unpack(self.packed, torch.arange(self.out_features))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        linear = self._kernels.linear_exact if self.weight is None else self._kernels.linear
        return self._multiply(lambda rows: linear(rows, self.packed, self.bias), x)


class UnquantizedLinear(QuantLinear):
    """A layer whose weight `quantize` will quantise. Until then, it computes like the layers that it combines."""

    def __init__(self, linears: Sequence[nn.Linear], form: QuantFormat, kernels: QuantKernels) -> None:
        """linears: either all or none have a bias."""
        biases = [linear.bias.data for linear in linears if linear.bias is not None]
        nothing = PackedQuant.empty(sum(linear.out_features for linear in linears), linears[0].in_features)
        super().__init__(nothing, kernels.pad_bias(biases) if biases else None, kernels)
        self._given: list[tuple[torch.Tensor, torch.Tensor | None]] = [(one.weight.data, one.bias) for one in linears]
        self._form = form

    @torch.inference_mode()
    def quantize(self) -> tuple[int, int]:
        """Quantise the weight, and drop the original one."""
        if not self._given:
            raise RuntimeError("this layer is quantised already")
        before = sum(weight.nbytes for weight, _ in self._given)
        packed = []
        while self._given:
            weight, _ = self._given.pop(0)
            out_features, in_features = weight.shape
            packed.append(self._kernels.pack(self._form, out_features, in_features, _quantized(weight, self._form)))
        self.packed = PackedQuant.join(packed)
        super().quantize()
        return before, self.packed.nbytes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self._given:
            return super().forward(x)
        results = [nn.functional.linear(x.to(weight.dtype), weight, bias) for weight, bias in self._given]
        return torch.cat(results, -1).to(x.dtype)


class QuantEmbedding(nn.Module):
    """An embedding with a quantised weight, which it can share with the output head. [...] int64 -> [..., features] float32.

    Args:
        scale: factor of the embeddings, in families that have one.
    """

    def __init__(self, packed: PackedQuant, kernels: QuantKernels, scale: float = 1.0) -> None:
        super().__init__()
        self.packed, self._kernels, self.scale = packed, kernels, scale
        # A model has the dtype and the device of its first parameter, and this may be its only one.
        self.sample = nn.Parameter(torch.empty(0), requires_grad=False)

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        rows = self._kernels.unpack(self.packed, token_ids.flatten()).view(*token_ids.shape, -1)
        return rows if self.scale == 1.0 else rows * self.scale


def _quantized(weight: torch.Tensor, form: QuantFormat) -> Iterator[QuantizedRows]:
    for begin, end in portions(*weight.shape):
        yield quantize_rows(weight[begin:end].float(), form)
