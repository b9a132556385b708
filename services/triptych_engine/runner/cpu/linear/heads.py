"""Products of the heads of an attention on CPUs, see HeadProducts."""

from __future__ import annotations

import ctypes

import torch

from triptych_engine.runner.attention.latent import HeadProducts
from triptych_engine.runner.cpu.kernel_args import HeadsArgs
from triptych_engine.runner.cpu.kernels import CpuKernels
from triptych_engine.runner.cpu.linear.layers import OneDnnLinear
from triptych_engine.runner.cpu.linear.packing import multiplies_bfloat16

_ROWS = 16  # to a multiple of which the kernel reads rows of the workspace


def pack_heads(weight: torch.Tensor, kernels: CpuKernels | None, *, batch_invariant: bool = False) -> HeadProducts:
    """In the layout that is fastest here, chosen as for linear layers (packing.py). weight: [num_heads, out_features, in_features].

    Args:
        kernels: None if there are none.
        batch_invariant: the result of a row must not depend on the number of rows.
    """
    if kernels is not None and weight.dtype == torch.bfloat16 and multiplies_bfloat16(kernels):
        return KernelHeads(weight, kernels, rounds_inputs=True)
    if kernels is not None and weight.dtype == torch.float32 and torch.equal((narrow := weight.bfloat16()).float(), weight):
        return KernelHeads(narrow, kernels, rounds_inputs=False)
    return TorchHeads(weight, batch_invariant=batch_invariant)


class KernelHeads:
    """Weights are bfloat16, and sums float32.

    Args:
        rounds_inputs: if the CPU has bfloat16 instructions, the inputs are rounded to bfloat16. Otherwise the weight is widened.
    """

    def __init__(self, weight: torch.Tensor, kernels: CpuKernels, *, rounds_inputs: bool) -> None:
        _, self.out_features, self.in_features = weight.shape
        self._kernels, self._rounds = kernels, rounds_inputs
        self._packed = torch.stack([kernels.pack_linear(one) for one in weight])

    def __call__(self, x: torch.Tensor, out: torch.Tensor, first_head: int = 0) -> None:
        rows = x.float()
        if rows.stride(-1) != 1:
            rows = rows.contiguous()
        words = self._kernels.linear_row_words(self.in_features) if self._rounds else 0
        num_rows = x.shape[1] * (-(-len(x) // _ROWS) * _ROWS)
        args = HeadsArgs(
            x=rows.data_ptr(),
            weight=self._packed[first_head].data_ptr(),
            out=out.data_ptr(),
            workspace=self._kernels.workspace(num_rows, words),
            x_stride_row=rows.stride(0),
            x_stride_head=rows.stride(1) if x.shape[1] > 1 else 0,
            out_stride_row=out.stride(0),
            out_stride_head=out.stride(1),
            rows=len(x),
            heads=out.shape[1],
            out_features=self.out_features,
            in_features=self.in_features,
            is_wide=not self._rounds,
        )
        self._kernels.linear_heads(ctypes.byref(args))


class TorchHeads:
    """In plain torch, or head by head. Weights have any dtype, in which inputs are multiplied.

    Args:
        batch_invariant: see OneDnnLinear.
    """

    def __init__(self, weight: torch.Tensor, *, batch_invariant: bool = False) -> None:
        _, self.out_features, self.in_features = weight.shape
        self._weight = weight.transpose(1, 2).contiguous()
        self._heads = [OneDnnLinear(one.contiguous(), None, batch_invariant=True) for one in weight] if batch_invariant else None

    def __call__(self, x: torch.Tensor, out: torch.Tensor, first_head: int = 0) -> None:
        x, num_heads = x.to(self._weight.dtype), out.shape[1]
        if self._heads is None:
            inputs = x.transpose(0, 1).expand(num_heads, -1, -1)
            out.copy_(torch.bmm(inputs, self._weight[first_head : first_head + num_heads]).transpose(0, 1))
            return
        for index in range(num_heads):
            out[:, index] = self._heads[first_head + index](x[:, index if x.shape[1] > 1 else 0].contiguous())
