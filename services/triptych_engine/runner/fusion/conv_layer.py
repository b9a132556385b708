"""A decoder layer of LFM2's kind, a short convolution between two gates in the place of attention, as four matrix products and four
kernels between them, instead of about thirty torch calls."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn
from transformers import PreTrainedModel

from triptych_engine.runner.fusion.calls import ModuleCall
from triptych_engine.runner.fusion.kernels import FusedKernels, FusedMoE, PackedLinear
from triptych_engine.runner.fusion.modules import FusedRMSNorm, GatedMLP
from triptych_engine.runner.fusion.recognition import (
    STREAM_TOLERANCE,
    TOLERANCE,
    consists_of,
    is_close,
    layer_names,
    replace_layers,
)
from triptych_engine.runner.verdicts import Verdicts


class FusedConvLayer(nn.Module):
    """norm, input product, gated convolution, output product, add and norm, gated MLP or mixture of experts, add.

    Args:
        layer: a layer whose parts are already replaced (see `optimize`). They keep their names.
    """

    def __init__(self, layer: nn.Module, kernels: FusedKernels) -> None:
        super().__init__()
        names, conv = layer_names(layer), cast(Any, layer).conv
        self.conv = conv
        self.add_module(names.mlp, getattr(layer, names.mlp))
        for name in names.norms:
            self.add_module(name, getattr(layer, name))
        self._kernels = kernels
        self._parts: tuple[Any, ...] = (*(getattr(self, name) for name in names.norms), getattr(self, names.mlp))
        self._layers, self.number = conv.recurrent
        self.dtype: torch.dtype = conv.conv.weight.dtype
        self._weight, self._bias = conv.conv.weight.data.squeeze(1), None if conv.conv.bias is None else conv.conv.bias.data

    def forward(self, hidden_states: torch.Tensor, **ignored: Any) -> torch.Tensor:
        """hidden_states: [1, num_tokens, hidden_size] fp32."""
        norm, mlp_norm, mlp = self._parts
        x = hidden_states[0].contiguous()
        mixed = self._layers.gated_conv(self.number, self.conv.in_proj(norm(x)), self._weight, self._bias)
        x, normed = self._kernels.add_rms_norm(x, self.conv.out_proj(mixed), mlp_norm.scale, mlp_norm.eps)
        return x.add_(mlp(normed))[None]


def fuse_conv_layers(
    model: PreTrainedModel, token_ids: torch.Tensor, position_ids: torch.Tensor, kernels: FusedKernels, verdicts: Verdicts
) -> int:
    """Replace layers in place, where possible; returns how many. Arguments as of `fuse_layers`."""
    return replace_layers(model, token_ids, position_ids, _has_parts, lambda call: _fused(call, kernels, verdicts))


def _has_parts(layer: nn.Module) -> bool:
    """Whether the layer has exactly the parts of its kind, and all of them are replaced."""
    conv: Any = getattr(layer, "conv", None)
    names = layer_names(layer)
    parts = {**dict.fromkeys(names.norms, FusedRMSNorm), names.mlp: (GatedMLP, FusedMoE), "conv": type(conv)}
    if not hasattr(conv, "recurrent") or len(names.norms) != 2 or not consists_of(layer, parts):
        return False
    if not consists_of(conv, {"in_proj": PackedLinear, "conv": nn.Conv1d, "out_proj": PackedLinear}):
        return False
    return bool(conv.in_proj.out_features == 3 * conv.conv.in_channels == 3 * conv.conv.groups)


def _fused(call: ModuleCall, kernels: FusedKernels, verdicts: Verdicts) -> FusedConvLayer | None:
    """The layer's replacement, if it computes the same on these inputs; else None."""
    if call.input.dtype != torch.float32 or not isinstance(call.output, torch.Tensor):
        return None
    fused = FusedConvLayer(call.module, kernels)

    @torch.inference_mode()
    def computes_the_same() -> bool:
        got, stream = fused(call.input), STREAM_TOLERANCE * call.input.abs()
        return is_close(call.output - call.input, got - call.input, TOLERANCE[fused.dtype], stream)

    return fused if verdicts.of(("convolutional layer", fused.number), computes_the_same) else None
