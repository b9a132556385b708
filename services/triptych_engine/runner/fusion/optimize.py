"""Replaces modules of a loaded model with equivalent ones that are faster or more exact. It works by pattern, for any architecture.

- The weights of linear layers are packed once. On a CPU, weights whose numbers are all bfloat16, even if the model is float32, are
  stored as bfloat16 in our own layout, others in oneDNN's layout. q, k and v, which read the same input, become one product;
- gated MLPs become two products and one kernel between them, the experts of a mixture one kernel, on GPUs with their router (see
  moe.py);
- RMS norms become one kernel. Norms and MLPs are recognised by name and verified on random input before they are replaced, so
  that a family with another formula keeps its own modules;
- decoder layers of the common kind become one kernel, or four products and five kernels (see layer.py).

In 16 bits also:
- if all norms could be replaced, the residual stream is kept in float32: the embedding returns float32, type promotion keeps it
  from layer to layer, and the norms convert it to bfloat16 for the matrix products. This costs almost nothing;
- the output head returns float32 logits that are not rounded (a bfloat16 logit of 25 is a multiple of 1/8).
With both, the output distribution is closer to the float32 model's than that of transformers' own bfloat16
(docs/architecture/measurements.md).

Linear layers with quantised weights, from the checkpoint or on request, compute with integers in the end. Modules that are built
from them are verified first, without rounded inputs; cpu/quantize.py comes last.
"""

from __future__ import annotations

import ast
import copy
import functools
import inspect
import itertools
import logging
import re
import textwrap
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from triptych_common.host.memory import return_free_memory

from triptych_engine.runner.fusion.kernels import FusedKernels, PackedLinear
from triptych_engine.runner.fusion.layer import fuse_layers
from triptych_engine.runner.fusion.modules import (
    FusedGatedRMSNorm,
    FusedRMSNorm,
    GatedMLP,
    LinearPart,
    SharedProduct,
    activation_name,
)
from triptych_engine.runner.fusion.moe import fused_moe
from triptych_engine.runner.verdicts import Verdicts

log = logging.getLogger(__name__)
#: After so many replaced modules, the memory of their weights is returned: blocks below 32 MiB would stay with the process.
_RETURN_EVERY = 16
#: Names of linear layers that read the same input, one after the other.
_SAME_INPUT = (
    ("q_proj", "k_proj", "v_proj"),
    ("in_proj_qkvz", "in_proj_ba"),
    ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"),
)
#: Names of the linear layers of a gated MLP: gate and up, or both in one; then down.
_GATED = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"), ("input_linear", "output_linear"))
#: Largest difference between a module and its replacement that rounding can explain, relative to the largest value.
_TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 3e-2}


def optimize(
    model: PreTrainedModel,
    kernels: FusedKernels,
    token_ids: torch.Tensor,
    position_ids: torch.Tensor,
    *,
    verdicts: Verdicts | None = None,
) -> None:
    """Replace modules of a model in place, where possible.

    Args:
        model: a model that uses paged attention.
        kernels: of the model's device.
        token_ids: [num_tokens] of a prompt on which replacements are verified.
        position_ids: in the model's form, spread over its context.
        verdicts: of the same model, if it was loaded before in this process.
    """
    if not kernels.computes(model.dtype):
        return
    embedding = getattr(model.get_input_embeddings(), "weight", None)  # a quantised one has none
    if embedding is not None:
        _detach_from_file(embedding)  # before the head, which may share it, is replaced
    verdicts = verdicts or Verdicts()
    wide = False
    num_norms = num_layers = 0
    if kernels.fuses:
        num_norms = _replace(model, lambda module, name: _fused_norm(module, kernels))
        _replace(model, lambda module, name: _fused_gated_norm(module, kernels))
        replaced = (FusedRMSNorm, FusedGatedRMSNorm)
        others = [m for m in model.modules() if "Norm" in type(m).__name__ and not isinstance(m, replaced)]
        wide = model.dtype != torch.float32 and num_norms > 0 and not others
        _replace_head(model, kernels)
        _replace(model, lambda module, name: _gated_mlp(module, name, kernels, verdicts))
        if not getattr(model.config.get_text_config(), "output_router_logits", False):  # which the model reads from its routers
            _replace(model, lambda module, name: fused_moe(module, name, kernels, verdicts))
        _replace(model, lambda module, name: kernels.experts(module))
    _share_products(model, kernels)
    num_linears = _replace(model, lambda module, name: _packed_linear(module, kernels))
    for parameter in model.parameters():
        if parameter is not embedding:
            _detach_from_file(parameter)
    if wide:
        model.get_input_embeddings().register_forward_hook(_widen)
    if kernels.fuses:
        num_layers = fuse_layers(model, token_ids, position_ids, kernels, verdicts)
    stream = "float32" if wide else str(model.dtype).removeprefix("torch.")
    log.info(
        "packed %d linear layers, fused %d norms and %d decoder layers, %s residual stream",
        num_linears,
        num_norms,
        num_layers,
        stream,
    )


def _detach_from_file(parameter: nn.Parameter) -> None:
    """Copy a parameter that is kept on a CPU. The other weights were packed, so the memory-mapped checkpoint is then no longer
    needed."""
    if parameter.device.type == "cpu":
        parameter.data = parameter.data.clone()


def _widen(module: nn.Module, args: object, output: torch.Tensor) -> torch.Tensor:
    return output.float()


def _replace(model: PreTrainedModel, make: Callable[[nn.Module, str], nn.Module | None]) -> int:
    """Replace the modules that `make` makes a replacement of; it gets a module and its name in the model."""
    num_replaced, head = 0, model.get_output_embeddings()
    for prefix, parent in model.named_modules():  # no list: it would keep replaced modules and their weights alive to the end
        if parent is head or isinstance(parent, (PackedLinear, GatedMLP)):
            continue
        for name, child in list(parent.named_children()):
            replacement = None if name in _read_weights(type(parent).forward) else make(child, f"{prefix}.{name}")
            if replacement is not None:
                setattr(parent, name, replacement)
                num_replaced += 1
                if num_replaced % _RETURN_EVERY == 0:
                    return_free_memory()
    return num_replaced


@functools.cache
def _read_weights(forward: Callable[..., Any]) -> frozenset[str]:
    """Names of the modules inside of a module whose weights its own forward pass reads, as the router of HunYuan's mixture does.

    Not what it reads only while it is trained, as Mamba-2 does.
    """
    try:
        source = inspect.getsource(forward)
    except (OSError, TypeError):  # there is no source
        return frozenset()
    try:
        todo: list[ast.AST] = [ast.parse(textwrap.dedent(source))]
    except SyntaxError:  # a line is indented less than the function
        return frozenset(re.findall(r"self\.(\w+)\.weight\b", source))
    found = set()
    while todo:
        node = todo.pop()
        read = re.fullmatch(r"self\.(\w+)\.weight", ast.unparse(node)) if isinstance(node, ast.Attribute) else None
        if read:
            found.add(read[1])
        todo += node.orelse if isinstance(node, ast.If) and _is_of_training(node.test) else ast.iter_child_nodes(node)
    return frozenset(found)


def _is_of_training(test: ast.expr) -> bool:
    """Whether a condition is `self.training`, with or without further ones."""
    first = test.values[0] if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else test
    return ast.unparse(first) == "self.training"


def _packed_linear(module: nn.Module, kernels: FusedKernels) -> nn.Module | None:
    return kernels.pack(module) if not isinstance(module, PackedLinear) and kernels.takes([module]) else None


def _linears(module: nn.Module, kernels: FusedKernels, *names: str) -> list[nn.Linear | PackedLinear] | None:
    """The module's linear layers with these names, if they can be packed together."""
    linears = [getattr(module, name, None) for name in names]
    return linears if kernels.takes(linears) else None  # type: ignore[return-value]


def _share_products(model: nn.Module, kernels: FusedKernels) -> None:
    """Join the projections of each attention, and of each gated delta rule."""
    for module, names in itertools.product(list(model.modules()), _SAME_INPUT):
        linears = _linears(module, kernels, *names)
        if linears and len({(linear.in_features, linear.bias is None) for linear in linears}) == 1:
            product = SharedProduct(linears, kernels.pack)
            for index, name in enumerate(names):
                setattr(module, name, LinearPart(product, index))


def _gated_mlp(module: nn.Module, module_name: str, kernels: FusedKernels, verdicts: Verdicts) -> nn.Module | None:
    names = next((names for names in _GATED if hasattr(module, names[0])), _GATED[0])
    linears = _linears(module, kernels, *names)
    if linears is None or not type(module).__name__.endswith("MLP"):
        return None
    *inputs, down = linears
    act_fn = getattr(module, "act_fn", getattr(module, "activation", None))
    activation = "silu" if act_fn is None else activation_name(act_fn)
    if len({one.bias is None for one in inputs}) > 1 or activation is None or activation not in kernels.activations:
        return None
    fused = GatedMLP(dict(zip(names, inputs, strict=False)), names[-1], down, activation, kernels)

    def computes_the_same() -> bool:
        sample = torch.randn(1, 3, inputs[0].in_features, generator=torch.Generator().manual_seed(0))
        if isinstance(inputs[0], nn.Linear):
            sample = sample.to(inputs[0].weight)
        # With large inputs, too: some families clamp the activations. In float16 the largest may overflow.
        pairs = [(module(scale * sample), fused(scale * sample)) for scale in (1, 10, 100)]
        return all(_same(expected, got) for expected, got in pairs if expected.isfinite().all())

    return fused if verdicts.of(("gated MLP", module_name), computes_the_same) else None


def _same(expected: torch.Tensor, got: torch.Tensor) -> bool:
    tolerance = _TOLERANCE[expected.dtype]
    return torch.allclose(expected, got, rtol=tolerance, atol=tolerance * expected.abs().max().item())


def _replace_head(model: PreTrainedModel, kernels: FusedKernels) -> None:
    """Let the output head return float32. A plain one of a float32 model is packed with other layers."""
    replacement = kernels.head(model.get_output_embeddings())
    if replacement is not None:
        model.set_output_embeddings(replacement)


def _fused_norm(module: nn.Module, kernels: FusedKernels) -> nn.Module | None:
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


def _fused_gated_norm(module: nn.Module, kernels: FusedKernels) -> nn.Module | None:
    weight = getattr(module, "weight", None)
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if kernels.gated_rms_norm is None or not type(module).__name__.endswith("RMSNormGated") or not isinstance(eps, float):
        return None
    if weight is None or weight.dim() != 1 or weight.dtype not in (torch.float32, torch.bfloat16):
        return None
    generator = torch.Generator().manual_seed(0)
    x, gate = (torch.randn(6, weight.shape[0], generator=generator) for _ in range(2))
    x *= torch.logspace(-2, 2, weight.shape[0])  # which a norm of groups makes equal
    expected = copy.deepcopy(module).float()(x, gate)
    for gates_first in (False, True):
        fused = FusedGatedRMSNorm(weight.data, eps, kernels.gated_rms_norm, gates_first=gates_first)
        if _same(expected, fused(x, gate)):
            return fused
    return None
