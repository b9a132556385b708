"""Replaces modules of a loaded model by faster or more exact equals, by pattern, whatever the architecture.

On CPUs in bfloat16:
- linear layers get their weights packed once, in oneDNN's own layout; q, k and v, which read the same input, become one product;
- gated MLPs become two products and one kernel between them;
- RMS norms become one kernel. Norms and MLPs are recognised by name and verified on random input before they are replaced, so
  that a family with another formula keeps its own;
- where all norms could be replaced, the residual stream is kept in float32: the embedding hands out float32, type promotion
  carries it from layer to layer, and the norms narrow it for the matrix products. That costs next to nothing;
- the output head returns float32 logits whose top is exact (a bfloat16 logit of 25 is a multiple of 1/8).
The last two together bring the distribution nearer to the float32 model's than transformers' own bfloat16 is (docs/performance.md).
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
    """nn.Linear on CPU with its weight in oneDNN's own blocked layout, packed once instead of at each call.

    Of several layers it makes one, whose output is theirs side by side.
    """

    def __init__(self, *linears: nn.Linear) -> None:
        super().__init__()
        weight = torch.cat([linear.weight.data for linear in linears]) if len(linears) > 1 else linears[0].weight.data
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, _PACK_FOR_ROWS)
        self._bias = None if linears[0].bias is None else torch.cat([linear.bias.data for linear in linears])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")


class _SharedProduct:
    """One product for several layers that are called with the same input, one after the other."""

    def __init__(self, linears: list[nn.Linear]) -> None:
        self._linear = PackedLinear(*linears)
        self._sizes = [linear.out_features for linear in linears]
        self._input: torch.Tensor | None = None  # held, so that no other tensor can be taken for it
        self._outputs: dict[int, torch.Tensor] = {}  # layer -> its output, until it is taken

    def take(self, index: int, x: torch.Tensor) -> torch.Tensor:
        """The output of one of the layers; the first to ask computes those of all."""
        if x is not self._input or index not in self._outputs:
            self._input = x
            self._outputs = dict(enumerate(self._linear(x).split(self._sizes, -1)))
        output = self._outputs.pop(index)
        if not self._outputs:
            self._input = None
        return output


class LinearPart(nn.Module):
    """One of the layers of a shared product; each hands out its slice of the one result."""

    def __init__(self, product: _SharedProduct, index: int) -> None:
        super().__init__()
        self._product, self._index = product, index

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._product.take(self._index, x)


class GatedMLP(nn.Module):
    """down(silu(gate(x)) * up(x)) as two products and one kernel between them. x: [..., hidden_size] bf16."""

    def __init__(self, gate: nn.Linear, up: nn.Linear, down: nn.Linear, kernels: CpuKernels) -> None:
        super().__init__()
        self._gate_up, self._down, self._kernels = PackedLinear(gate, up), PackedLinear(down), kernels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._down(self._kernels.silu_mul(self._gate_up(x)))


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
        _replace(model, lambda module: _gated_mlp(module, kernels))
    _share_products(model)
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
        if isinstance(parent, (PackedLinear, ExactTopHead, GatedMLP)):
            continue
        for name, child in list(parent.named_children()):
            replacement = make(child)
            if replacement is not None:
                setattr(parent, name, replacement)
                num_replaced += 1
    return num_replaced


def _packed_linear(module: nn.Module) -> nn.Module | None:
    return PackedLinear(module) if type(module) is nn.Linear and module.weight.dtype == torch.bfloat16 else None


def _bf16_linears(module: nn.Module, *names: str) -> list[nn.Linear] | None:
    """The module's linear layers of these names; None unless all are there and plain."""
    found = [getattr(module, name, None) for name in names]
    linears = [layer for layer in found if type(layer) is nn.Linear and layer.weight.dtype == torch.bfloat16]
    return linears if len(linears) == len(names) else None


def _share_products(model: nn.Module) -> None:
    """Join the q, k and v projections of each attention."""
    names = ("q_proj", "k_proj", "v_proj")
    for module in model.modules():
        linears = _bf16_linears(module, *names)
        if linears and len({(linear.in_features, linear.bias is None) for linear in linears}) == 1:
            product = _SharedProduct(linears)
            for index, name in enumerate(names):
                setattr(module, name, LinearPart(product, index))


def _gated_mlp(module: nn.Module, kernels: CpuKernels) -> nn.Module | None:
    linears = _bf16_linears(module, "gate_proj", "up_proj", "down_proj")
    if linears is None or not type(module).__name__.endswith("MLP"):
        return None
    gate, up, down = linears
    if (gate.bias is None) != (up.bias is None):
        return None
    fused = GatedMLP(gate, up, down, kernels)
    sample = torch.randn(1, 3, gate.in_features, generator=torch.Generator().manual_seed(0)).to(gate.weight)
    expected = module(sample)
    return fused if torch.allclose(expected, fused(sample), rtol=3e-2, atol=3e-2 * expected.abs().max().item()) else None


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
