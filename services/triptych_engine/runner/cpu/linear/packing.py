"""Chooses how linear layers are packed."""

from __future__ import annotations

import torch
from torch import nn

from triptych_engine.runner.cpu.kernel_args import PackedWeight
from triptych_engine.runner.cpu.kernels import CpuKernels
from triptych_engine.runner.cpu.linear.layers import Bf16Linear, KernelLinear, OneDnnLinear
from triptych_engine.runner.cpu.linear.quant import QuantLinear, UnquantizedLinear
from triptych_engine.runner.fusion.kernels import PackedLinear
from triptych_engine.runner.model.precision import cpu_computes_bfloat16
from triptych_engine.runner.quantization.formats import QuantFormat


def pack(
    kernels: CpuKernels | None, *linears: nn.Linear | QuantLinear, form: QuantFormat | None = None, batch_invariant: bool = False
) -> PackedLinear:
    """Combine layers into one, in the layout that is fastest here; either all or none have a bias, and all or none are quantised.

    Args:
        form: the format in which `QuantLinear.quantize` will store layers that are not quantised; None leaves them as they are.
        batch_invariant: the result of a row must not depend on the number of rows.
    """
    quantised = [linear for linear in linears if isinstance(linear, QuantLinear)]
    if quantised:
        return QuantLinear.join(quantised)
    plain = [linear for linear in linears if isinstance(linear, nn.Linear)]
    if kernels is not None and form is not None:
        return UnquantizedLinear(plain, form, kernels.quant_kernels(batch_invariant=batch_invariant))
    weight = torch.cat([linear.weight.data for linear in plain]) if len(plain) > 1 else plain[0].weight.data
    bias = None if plain[0].bias is None else torch.cat([linear.bias.data for linear in plain])
    if kernels is not None and weight.dtype == torch.bfloat16 and multiplies_bfloat16(kernels):
        return Bf16Linear(weight, bias, kernels)
    if kernels is not None and weight.dtype == torch.float32 and torch.equal((narrow := weight.bfloat16()).float(), weight):
        return Bf16Linear(narrow, bias, kernels, rounds_inputs=False)
    return OneDnnLinear(weight, bias, batch_invariant=batch_invariant)


def multiplies_bfloat16(kernels: CpuKernels) -> bool:
    """Whether bfloat16 models use our kernels, not oneDNN. oneDNN is better if only it uses the CPU's bfloat16 instructions."""
    return kernels.linear_method != "fp32" or not cpu_computes_bfloat16()


def can_pack(kernels: CpuKernels | None, dtype: torch.dtype) -> bool:
    """Whether `pack` takes weights of this dtype. oneDNN takes bfloat16 only on CPUs with AVX-512; our kernels do on any."""
    if dtype == torch.bfloat16:
        return kernels is not None or torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return dtype == torch.float32 and torch.backends.mkldnn.is_available()


def packed_weight(linear: KernelLinear) -> PackedWeight:
    """Its weight and bias in the kernels' form."""
    weight, bias = (None if tensor is None else tensor.data_ptr() for tensor in (linear.weight, linear.bias))
    num_panels = num_float_panels = 0
    if isinstance(linear, QuantLinear) and linear.weight is not None:
        num_panels, num_float_panels = len(linear.weight), linear.packed.num_float_panels
    return PackedWeight(weight, bias, linear.in_features, linear.out_features, num_panels, num_float_panels)
