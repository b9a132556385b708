"""How decoder layers are recognised: by the names of their parts, and by what they compute on a real input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from triptych_engine.runner.fusion.calls import ModuleCall, recorded_calls

#: Largest difference that rounding can explain, relative to the typical value.
TOLERANCE = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 5e-2}
#: Largest difference in what a layer adds to the residual stream that the stream's rounding to float32 can explain, relative to it.
STREAM_TOLERANCE = 1e-6


@dataclass(frozen=True)
class LayerNames:
    """What a family calls the parts of its layers.

    Attributes:
        norms: before the attention and before the MLP; then behind them, before the residual stream is added.
    """

    norms: tuple[str, ...]
    mlp: str = "mlp"
    output: str = "o_proj"
    qk_norms: tuple[str, str] = ("q_norm", "k_norm")


_NAMES = (
    LayerNames(("input_layernorm", "pre_feedforward_layernorm", "post_attention_layernorm", "post_feedforward_layernorm")),
    LayerNames(("operator_norm", "ffn_norm"), "feed_forward", "out_proj", ("q_layernorm", "k_layernorm")),  # LFM2
    LayerNames(("input_layernorm", "post_attention_layernorm"), "shared_mlp"),  # Granite 4
    LayerNames(("input_layernorm", "post_attention_layernorm")),
)


def layer_names(layer: nn.Module) -> LayerNames:
    """What the layer's family calls its parts."""
    return next((names for names in _NAMES if all(hasattr(layer, name) for name in (*names.norms, names.mlp))), _NAMES[-1])


def consists_of(module: nn.Module, parts: dict[str, Any]) -> bool:
    """Whether the module has children with these names, of these classes, and no others with parameters."""
    children = dict(module.named_children())
    # Other modules without parameters are allowed, for example rotary embeddings: the comparison shows whether they matter.
    extra = [child for name, child in children.items() if name not in parts and any(True for _ in child.parameters())]
    return not extra and all(isinstance(children.get(name), kind) for name, kind in parts.items())


def replace_layers(
    model: PreTrainedModel,
    token_ids: torch.Tensor,
    position_ids: torch.Tensor,
    has_parts: Callable[[nn.Module], bool],
    make: Callable[[ModuleCall], nn.Module | None],
) -> int:
    """Replace the layers with certain parts of which `make` makes a replacement, from their calls on a prompt; returns how many."""
    owners = {layer: (parent, name) for parent in model.modules() for name, layer in parent.named_children() if has_parts(layer)}
    if not owners:
        return 0
    calls, _ = recorded_calls(model, owners, token_ids, position_ids)
    made = [(call.module, make(call)) for call in calls]
    for layer, replacement in made:
        if replacement is not None:
            setattr(*owners[layer], replacement)
    return sum(replacement is not None for _, replacement in made)


def is_close(expected: torch.Tensor, got: torch.Tensor, tolerance: float, extra: torch.Tensor | float = 0.0) -> bool:
    """Whether each difference is small, relative to the element plus the root mean square of all elements."""
    if expected.shape != got.shape:
        return False
    typical = expected.square().mean().sqrt()
    return bool(((expected - got).abs() <= tolerance * (expected.abs() + typical) + extra).all())
