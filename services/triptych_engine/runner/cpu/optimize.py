"""Replaces modules of a loaded model with equivalent ones that are faster or more exact. It works by pattern, for any architecture.

On CPUs, in bfloat16 and float32:
- the weights of linear layers are packed once. Weights whose numbers are all bfloat16, even if the model is float32, are stored as
  bfloat16 in our own layout, others in oneDNN's layout. q, k and v, which read the same input, become one product;
- gated MLPs become two products and one kernel between them;
- RMS norms become one kernel. Norms and MLPs are recognised by name and verified on random input before they are replaced, so
  that a family with another formula keeps its own modules;
- decoder layers of the common kind become one kernel, or four products and five kernels (see decoder/layer.py).

In bfloat16 also:
- if all norms could be replaced, the residual stream is kept in float32: the embedding returns float32, type promotion keeps it
  from layer to layer, and the norms convert it to bfloat16 for the matrix products. This costs almost nothing;
- the output head returns float32 logits that are not rounded (a bfloat16 logit of 25 is a multiple of 1/8).
With both, the output distribution is closer to the float32 model's than that of transformers' own bfloat16
(docs/architecture/measurements.md).

Linear layers with quantised weights, from the checkpoint or on request, compute with integers in the end. Modules that are built
from them are verified first, without rounded inputs; `quantize` comes last.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedModel

from triptych_engine.runner.cpu.decoder.layer import fuse_layers, join_layers
from triptych_engine.runner.cpu.kernels import CpuKernels
from triptych_engine.runner.cpu.linear.layers import Bf16Linear, PackedLinear
from triptych_engine.runner.cpu.linear.packing import Pack, can_pack, pack
from triptych_engine.runner.cpu.linear.quant import QuantLinear, UnquantizedLinear
from triptych_engine.runner.cpu.modules import FusedRMSNorm, GatedMLP, LinearPart, SharedProduct, WideHead
from triptych_engine.runner.quantization.formats import HEAD_ON_THE_FLY, QuantFormat
from triptych_engine.runner.verdicts import Verdicts

log = logging.getLogger(__name__)
#: Largest difference between a module and its replacement that rounding can explain, relative to the largest value.
_TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2}


def optimize(
    model: PreTrainedModel,
    kernels: CpuKernels | None,
    token_ids: torch.Tensor,
    position_ids: torch.Tensor,
    *,
    form: QuantFormat | None = None,
    batch_invariant: bool = False,
    verdicts: Verdicts | None = None,
) -> None:
    """Replace modules of a CPU model in place, where possible; without kernels only the linear layers.

    Args:
        model: a model that uses paged attention.
        token_ids: [num_tokens] of a prompt on which replacements are verified.
        position_ids: in the model's form, spread over its context.
        form: prepare the linear layers for `quantize`, which will store them in this format; needs kernels.
        batch_invariant: the linear layers' result for a row must not depend on the number of rows.
        verdicts: of the same model, if it was loaded before in this process.
    """
    if model.device.type != "cpu" or not can_pack(kernels, model.dtype):
        return
    embedding = getattr(model.get_input_embeddings(), "weight", None)  # a quantised one has none
    if embedding is not None:
        _detach_from_file(embedding)  # before the head, which may share it, is replaced
    verdicts = verdicts or Verdicts()
    wide = False
    num_norms = 0
    pack_linears = functools.partial(pack, kernels, form=form, batch_invariant=batch_invariant)
    if kernels is not None:
        num_norms = _replace(model, lambda module, name: _fused_norm(module, kernels))
        others = [m for m in model.modules() if "Norm" in type(m).__name__ and not isinstance(m, FusedRMSNorm)]
        wide = model.dtype == torch.bfloat16 and num_norms > 0 and not others
        _replace_head(model, kernels, form, batch_invariant)
        _replace(model, lambda module, name: _gated_mlp(module, name, kernels, pack_linears, verdicts))
    _share_products(model, kernels, pack_linears)
    num_linears = _replace(model, lambda module, name: _packed_linear(module, kernels, pack_linears))
    for parameter in model.parameters():
        if parameter is not embedding:
            _detach_from_file(parameter)
    if wide:
        model.get_input_embeddings().register_forward_hook(_widen)
    num_layers = fuse_layers(model, token_ids, position_ids, kernels, verdicts) if kernels is not None else 0
    stream = "float32" if wide else str(model.dtype).removeprefix("torch.")
    log.info(
        "packed %d linear layers, fused %d norms and %d decoder layers, %s residual stream",
        num_linears,
        num_norms,
        num_layers,
        stream,
    )


@dataclass(frozen=True, slots=True)
class Quantized:
    """Statistics of a model's quantised linear layers."""

    num_layers: int  # layers that are combined into one count once
    bytes_before: int
    bytes_after: int


def quantize(
    model: PreTrainedModel, token_ids: torch.Tensor, position_ids: torch.Tensor, verdicts: Verdicts | None = None
) -> Quantized:
    """Quantise the inputs, and if necessary the weights, of the layers that `optimize` prepared, in place.

    The other arguments are the same as for `optimize`.
    """
    layers: dict[QuantLinear, None] = {}
    for module in model.modules():
        layer = module.product if isinstance(module, LinearPart) else module
        if isinstance(layer, QuantLinear):
            layers[layer] = None
    sizes = [layer.quantize() for layer in layers]
    join_layers(model, token_ids, position_ids, verdicts or Verdicts())
    return Quantized(len(sizes), sum(before for before, _ in sizes), sum(after for _, after in sizes))


def _detach_from_file(parameter: nn.Parameter) -> None:
    """Copy a parameter that is kept. The other weights were packed, so the memory-mapped checkpoint is then no longer needed."""
    parameter.data = parameter.data.clone()


def _widen(module: nn.Module, args: object, output: torch.Tensor) -> torch.Tensor:
    return output.float()


def _replace(model: nn.Module, make: Callable[[nn.Module, str], nn.Module | None]) -> int:
    """Replace the modules that `make` makes a replacement of; it gets a module and its name in the model."""
    num_replaced = 0
    for prefix, parent in model.named_modules():  # no list: it would keep replaced modules and their weights alive to the end
        if isinstance(parent, (PackedLinear, WideHead, GatedMLP)):
            continue
        for name, child in list(parent.named_children()):
            replacement = make(child, f"{prefix}.{name}")
            if replacement is not None:
                setattr(parent, name, replacement)
                num_replaced += 1
    return num_replaced


def _packed_linear(module: nn.Module, kernels: CpuKernels | None, pack: Pack) -> nn.Module | None:
    return pack(module) if type(module) is nn.Linear and can_pack(kernels, module.weight.dtype) else None


def _linears(module: nn.Module, kernels: CpuKernels | None, *names: str) -> list[nn.Linear | QuantLinear] | None:
    """The module's linear layers with these names; None unless all are plain `nn.Linear`, or all quantised."""
    found = [getattr(module, name, None) for name in names]
    plain = [layer for layer in found if type(layer) is nn.Linear and can_pack(kernels, layer.weight.dtype)]
    quantised = [layer for layer in found if isinstance(layer, QuantLinear)]
    return next((layers for layers in (plain, quantised) if len(layers) == len(names)), None)  # type: ignore[return-value]


def _share_products(model: nn.Module, kernels: CpuKernels | None, pack: Pack) -> None:
    """Join the q, k and v projections of each attention."""
    names = ("q_proj", "k_proj", "v_proj")
    for module in model.modules():
        linears = _linears(module, kernels, *names)
        if linears and len({(linear.in_features, linear.bias is None) for linear in linears}) == 1:
            product = SharedProduct(linears, pack)
            for index, name in enumerate(names):
                setattr(module, name, LinearPart(product, index))


def _gated_mlp(module: nn.Module, module_name: str, kernels: CpuKernels, pack: Pack, verdicts: Verdicts) -> nn.Module | None:
    linears = _linears(module, kernels, "gate_proj", "up_proj", "down_proj")
    if linears is None or not type(module).__name__.endswith("MLP"):
        return None
    gate, up, down = linears
    if (gate.bias is None) != (up.bias is None):
        return None
    fused = GatedMLP(gate, up, down, kernels, pack)

    def computes_the_same() -> bool:
        sample = torch.randn(1, 3, gate.in_features, generator=torch.Generator().manual_seed(0))
        if isinstance(gate, nn.Linear):
            sample = sample.to(gate.weight)
        # With large inputs, too: some families clamp the activations.
        return all(_same(module(scale * sample), fused(scale * sample)) for scale in (1, 100))

    return fused if verdicts.of(("gated MLP", module_name), computes_the_same) else None


def _same(expected: torch.Tensor, got: torch.Tensor) -> bool:
    tolerance = _TOLERANCE[expected.dtype]
    return torch.allclose(expected, got, rtol=tolerance, atol=tolerance * expected.abs().max().item())


def _replace_head(model: PreTrainedModel, kernels: CpuKernels, form: QuantFormat | None, batch_invariant: bool) -> None:
    """Pack the output head, so that its results are float32. A plain one of a float32 model is packed with other layers."""
    head = model.get_output_embeddings()
    if type(head) is not nn.Linear or (form is None and model.dtype != torch.bfloat16):
        return
    bias = None if head.bias is None else head.bias.data
    if form is None:
        linear: PackedLinear = Bf16Linear(head.weight.data, bias, kernels)
    else:
        linear = UnquantizedLinear([head], HEAD_ON_THE_FLY, kernels.quant_kernels(batch_invariant=batch_invariant))
    model.set_output_embeddings(WideHead(linear) if model.dtype == torch.bfloat16 else linear)


def _fused_norm(module: nn.Module, kernels: CpuKernels) -> nn.Module | None:
    weight = getattr(module, "weight", None)
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if not type(module).__name__.endswith("RMSNorm") or weight is None or weight.dim() != 1 or not isinstance(eps, float):
        return None
    sample = torch.randn(2, 3, weight.shape[0], generator=torch.Generator().manual_seed(0)).to(weight)
    expected = module(sample)
    for scale in (weight.data.float(), 1.0 + weight.data.float()):  # Gemma's norms store the weight minus one
        fused = FusedRMSNorm(scale, eps, weight.dtype, kernels)
        if torch.allclose(expected, fused(sample), rtol=_TOLERANCE[weight.dtype], atol=_TOLERANCE[weight.dtype]):
            return fused
    return None
