"""Modules that replace those of a model on a CPU: the same results with fewer and faster operations."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from triptych_engine.runner.cpu.kernels import CpuKernels
from triptych_engine.runner.model.precision import cpu_computes_bfloat16

#: Number of rows for which oneDNN chooses the layout of packed weights; measured best or near best from 1 to 512 rows.
_PACK_FOR_ROWS = 64


class PackedLinear(nn.Module):
    """A linear layer whose weight is packed once, in a special layout. It can combine several layers; its output is then their
    outputs concatenated. See `pack`."""


class OneDnnLinear(PackedLinear):
    """The weight is in oneDNN's blocked layout, so no call has to pack it. x and result: [..., features] of the weight's dtype.

    Args:
        batch_invariant: compute a single row as two. oneDNN sums it in another order than several, at least on some CPUs.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, *, batch_invariant: bool = False) -> None:
        super().__init__()
        self._batch_invariant = batch_invariant
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, _PACK_FOR_ROWS)
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
    #: In the layout of its format; None until it is packed.
    weight: torch.Tensor | None
    bias: torch.Tensor | None  # [panels * linear_panel] fp32

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, kernels: CpuKernels) -> None:
        super().__init__()
        self._kernels = kernels
        self.out_features, self.in_features = weight.shape
        self.bias = None if bias is None else nn.functional.pad(bias.float(), (0, -len(bias) % kernels.linear_panel))

    def _multiply(self, multiply: Callable[..., torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        """Compute with one of the kernels' products. x: [..., in_features] fp32 or bf16; the result is like x."""
        rows = x.reshape(-1, x.shape[-1]).float()
        if rows.stride(-1) != 1:
            rows = rows.contiguous()
        out = multiply(rows, self.weight, self.bias, self.out_features)
        return out.to(x.dtype).view(*x.shape[:-1], self.out_features)


class Bf16Linear(KernelLinear):
    """Stores a weight as bfloat16, also if it is given as float32. x: [..., in_features] fp32 or bf16; the result is like x.

    Sums are float32. If the weight is given as bfloat16 and the CPU has bfloat16 instructions, the inputs are rounded to bfloat16.
    Otherwise inputs are not rounded, and the weight is widened.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, kernels: CpuKernels) -> None:
        super().__init__(weight, bias, kernels)
        rounds = weight.dtype == torch.bfloat16
        self.weight_format, self._product = ("bf16", kernels.linear) if rounds else ("wide", kernels.linear_wide)
        self.weight = kernels.pack_linear(weight.bfloat16())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._multiply(self._product, x)


class Int8Linear(KernelLinear):
    """Computes with weights and inputs of 8 bits after `quantize`. Before that it uses the original weight, so that modules built
    from it can be compared with those that they replace. x: [..., in_features] fp32 or bf16; the result is like x."""

    weight_format = "int8"

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, kernels: CpuKernels) -> None:
        super().__init__(weight, bias, kernels)
        self.weight = None
        self._given: tuple[torch.Tensor, torch.Tensor | None] | None = (weight, bias)

    @torch.inference_mode()
    def quantize(self) -> tuple[int, int]:
        """Quantise the weight and drop the original one; returns the bytes of the original and of the quantised weight."""
        if self._given is None:
            raise RuntimeError("this layer is quantised already")
        given, self._given = self._given[0], None
        self.weight = self._kernels.pack_linear_int8(given.float())
        return given.nbytes, self.weight.nbytes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self._given is not None:
            return nn.functional.linear(x.to(self._given[0].dtype), *self._given).to(x.dtype)
        return self._multiply(self._kernels.linear_int8, x)


#: Combines layers into one; either all or none have a bias.
Pack = Callable[..., PackedLinear]


def pack(kernels: CpuKernels | None, *linears: nn.Linear, int8: bool = False, batch_invariant: bool = False) -> PackedLinear:
    """Combine layers into one, in the layout that is fastest here; either all or none have a bias.

    Args:
        int8: prepare `quantize`.
        batch_invariant: the result of a row must not depend on the number of rows.
    """
    weight = torch.cat([linear.weight.data for linear in linears]) if len(linears) > 1 else linears[0].weight.data
    bias = None if linears[0].bias is None else torch.cat([linear.bias.data for linear in linears])
    if kernels is not None and int8:
        return Int8Linear(weight, bias, kernels)
    if kernels is not None and (
        multiplies_bfloat16(kernels)
        if weight.dtype == torch.bfloat16
        else weight.dtype == torch.float32 and torch.equal(weight.bfloat16().float(), weight)
    ):
        return Bf16Linear(weight, bias, kernels)
    return OneDnnLinear(weight, bias, batch_invariant=batch_invariant)


def multiplies_bfloat16(kernels: CpuKernels) -> bool:
    """Whether bfloat16 models use our kernels, not oneDNN. oneDNN is better if only it uses the CPU's bfloat16 instructions."""
    return kernels.linear_method != "fp32" or not cpu_computes_bfloat16()


def can_pack(kernels: CpuKernels | None, dtype: torch.dtype) -> bool:
    """Whether `pack` takes weights of this dtype. oneDNN takes bfloat16 only on CPUs with AVX-512; our kernels do on any."""
    if dtype == torch.bfloat16:
        return kernels is not None or torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return dtype == torch.float32 and torch.backends.mkldnn.is_available()


class SharedProduct:
    """One product for several layers that are called with the same input, one after the other."""

    def __init__(self, linears: list[nn.Linear], pack: Pack) -> None:
        self.linear = pack(*linears)
        self._sizes = [linear.out_features for linear in linears]
        self._input: torch.Tensor | None = None  # held, so that no other tensor can be mistaken for it
        self._outputs: dict[int, torch.Tensor] = {}  # layer -> its output, until it is taken

    def take(self, index: int, x: torch.Tensor) -> torch.Tensor:
        """The output of one of the layers. The first call for an input computes the outputs of all layers."""
        if x is not self._input or index not in self._outputs:
            self._input = x
            self._outputs = dict(enumerate(self.linear(x).split(self._sizes, -1)))
        output = self._outputs.pop(index)
        if not self._outputs:
            self._input = None
        return output


class LinearPart(nn.Module):
    """One of the layers of a shared product. It returns its slice of the result."""

    def __init__(self, product: SharedProduct, index: int) -> None:
        super().__init__()
        self._shared, self._index = product, index

    @property
    def product(self) -> PackedLinear:
        """The product that it is a part of."""
        return self._shared.linear

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._shared.take(self._index, x)


class GatedMLP(nn.Module):
    """down(silu(gate(x)) * up(x)) as two products and one kernel between them. x: [..., hidden_size]."""

    def __init__(self, gate: nn.Linear, up: nn.Linear, down: nn.Linear, kernels: CpuKernels, pack: Pack) -> None:
        super().__init__()
        #: Its two products; the first one is gate and up, concatenated.
        self.gate_up, self.down = pack(gate, up), pack(down)
        self._kernels = kernels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self._kernels.silu_mul(self.gate_up(x)))


class WideHead(nn.Module):
    """The output head: bf16 hidden [..., hidden_size] -> fp32 logits [..., vocab_size], none of them rounded to bf16."""

    def __init__(self, linear: PackedLinear) -> None:
        super().__init__()
        self._linear = linear

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._linear(x.float())


class FusedRMSNorm(nn.Module):
    """x / rms(x) * weight in one pass; takes fp32 or bf16, computes in fp32, returns `dtype`. x: [..., hidden_size]."""

    def __init__(self, weight: torch.Tensor, eps: float, dtype: torch.dtype, kernels: CpuKernels) -> None:
        super().__init__()
        self.scale, self.eps, self._dtype, self._kernels = weight.float().contiguous(), eps, dtype, kernels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._kernels.rms_norm(x, self.scale, self.eps, self._dtype)
