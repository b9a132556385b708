"""Replaces modules of a loaded model by faster or more exact equals, by pattern, whatever the architecture.

On CPUs in bfloat16:
- linear layers get their weights packed once, in oneDNN's own layout;
- RMS norms become one kernel. They are recognised by name and verified on random input before they are replaced, so that a family
  with another formula keeps its own;
- where all norms could be replaced, the residual stream is kept in float32: the embedding hands out float32, type promotion
  carries it from layer to layer, and the norms narrow it for the matrix products. That costs next to nothing;
- the output head returns float32 logits whose top is exact (a bfloat16 logit of 25 is a multiple of 1/8).
The last two together bring the distribution four times closer to the float32 model's (docs/performance.md).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch import nn
from transformers import PreTrainedModel

from triptych_engine.runner.cpu_kernels import CpuKernels

log = logging.getLogger(__name__)
#: Rows for which oneDNN lays packed weights out; measured best or near best from 1 to 512 rows.
_PACK_FOR_ROWS = 64


class PackedLinear(nn.Module):
    """nn.Linear on CPU with its weight in oneDNN's own blocked layout, packed once instead of at each call."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.data, _PACK_FOR_ROWS)
        self._bias = None if linear.bias is None else linear.bias.data

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")


class ExactTopHead(nn.Module):
    """The output head: bf16 hidden [1, n, hidden_size] -> fp32 logits [1, n, vocab_size], the likeliest of each row not rounded."""

    def __init__(self, linear: nn.Linear, kernels: CpuKernels, *, tied: bool) -> None:
        super().__init__()
        self._kernels = kernels
        self._weight, self._bias = linear.weight.data, None if linear.bias is None else linear.bias.data.float()
        # The refinement reads plain rows. Packing keeps a second copy of the weight, which is spared unless the embedding has it
        # anyway.
        self._linear = PackedLinear(linear) if tied else linear

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = x[0]
        return self._kernels.refine_logits(self._linear(hidden), hidden, self._weight, self._bias)[None]


class FusedRMSNorm(nn.Module):
    """x / rms(x) * weight in one pass; takes fp32 or bf16, computes in fp32, returns `dtype`. x: [..., hidden_size]."""

    def __init__(self, weight: torch.Tensor, eps: float, dtype: torch.dtype, kernels: CpuKernels) -> None:
        super().__init__()
        self._weight, self._eps, self._dtype, self._kernels = weight.float().contiguous(), eps, dtype, kernels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._kernels.rms_norm(x, self._weight, self._eps, self._dtype)


def optimize(model: PreTrainedModel, kernels: CpuKernels | None) -> None:
    """Replace what can be replaced in a CPU model, in place; without kernels only the linear layers."""
    if model.dtype != torch.bfloat16 or model.device.type != "cpu" or not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return
    embedding = model.get_input_embeddings().weight
    _detach_from_file(embedding)  # before the head is replaced, which may share it
    wide = False
    num_norms = 0
    if kernels is not None:
        num_norms = _replace(model, lambda module: _fused_norm(module, kernels))
        wide = num_norms > 0 and not any("Norm" in type(m).__name__ and not isinstance(m, FusedRMSNorm) for m in model.modules())
        _replace_head(model, kernels)
    num_linears = _replace(model, _packed_linear)
    for parameter in model.parameters():
        if parameter is not embedding:
            _detach_from_file(parameter)
    if wide:
        model.get_input_embeddings().register_forward_hook(_widen)
    log.info(
        "packed %d linear layers, fused %d norms, %s residual stream", num_linears, num_norms, "float32" if wide else "bfloat16"
    )


def _detach_from_file(parameter: nn.Parameter) -> None:
    """Copy a parameter that is kept, so that the mapped checkpoint, whose other weights were packed, can leave memory."""
    parameter.data = parameter.data.clone()


def _widen(module: nn.Module, args: object, output: torch.Tensor) -> torch.Tensor:
    return output.float()


def _replace(model: nn.Module, make: Callable[[nn.Module], nn.Module | None]) -> int:
    num_replaced = 0
    for parent in list(model.modules()):
        if isinstance(parent, (PackedLinear, ExactTopHead)):
            continue
        for name, child in list(parent.named_children()):
            replacement = make(child)
            if replacement is not None:
                setattr(parent, name, replacement)
                num_replaced += 1
    return num_replaced


def _packed_linear(module: nn.Module) -> nn.Module | None:
    return PackedLinear(module) if type(module) is nn.Linear and module.weight.dtype == torch.bfloat16 else None


def _replace_head(model: PreTrainedModel, kernels: CpuKernels) -> None:
    head = model.get_output_embeddings()
    if type(head) is nn.Linear:
        tied = head.weight.data_ptr() == model.get_input_embeddings().weight.data_ptr()
        model.set_output_embeddings(ExactTopHead(head, kernels, tied=tied))


def _fused_norm(module: nn.Module, kernels: CpuKernels) -> nn.Module | None:
    weight = getattr(module, "weight", None)
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if not type(module).__name__.endswith("RMSNorm") or weight is None or weight.dim() != 1 or not isinstance(eps, float):
        return None
    sample = torch.randn(2, 3, weight.shape[0], generator=torch.Generator().manual_seed(0)).to(weight)
    expected = module(sample)
    for scale in (weight.data.float(), 1.0 + weight.data.float()):  # Gemma's norms store the weight less one
        fused = FusedRMSNorm(scale, eps, weight.dtype, kernels)
        if torch.allclose(expected, fused(sample), rtol=2e-2, atol=2e-2):
            return fused
    return None
