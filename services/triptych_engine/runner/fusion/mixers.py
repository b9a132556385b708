"""The part of a decoder layer in which tokens read others, between its input product and its output product: an attention, or a
short convolution between two gates (LFM2)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import nn

from triptych_engine.runner.attention.paged import LayerShape, current_backend
from triptych_engine.runner.fusion.calls import AttentionCall, ModuleCall
from triptych_engine.runner.fusion.kernels import AttentionParts, ConvParts, FusedKernels, PackedLinear
from triptych_engine.runner.fusion.modules import FusedRMSNorm, LinearPart
from triptych_engine.runner.fusion.recognition import LayerNames, consists_of
from triptych_engine.runner.fusion.rotary import CosSin


class Mixer(ABC):
    """See the module.

    Attributes:
        index: of the layer in the model.
        parts: for kernels that compute the layer as a whole.
        products: the input product and the output product.
        linears: for each of these, the name in the layer and the number of outputs of each of its linear layers.
        dtype: of what it computes.
    """

    index: int
    parts: AttentionParts | ConvParts
    products: tuple[PackedLinear, PackedLinear]
    linears: tuple[dict[str, int], dict[str, int]]
    dtype: torch.dtype

    @abstractmethod
    def mix(self, states: torch.Tensor, rotation: CosSin) -> torch.Tensor:
        """What the output product gets. states: [num_tokens, outputs of the input product]; rotation: of the tokens' positions."""


class AttentionMixer(Mixer):
    """call: what the layer passes to its attention, for the shapes and the options."""

    def __init__(self, attention: Any, names: LayerNames, call: AttentionCall, kernels: FusedKernels) -> None:
        num_q_heads, head_dim = call.query.shape[1:]
        num_kv_heads, v_head_dim = call.value.shape[1:]
        qk_norms = None
        if hasattr(attention, names.qk_norms[0]):
            q_norm, k_norm = (getattr(attention, name) for name in names.qk_norms)
            qk_norms = (q_norm.scale, k_norm.scale, q_norm.eps)
        self.index, self.dtype, self._kernels = call.layer, call.value.dtype, kernels
        self.parts: AttentionParts = AttentionParts(
            num_q_heads, LayerShape(num_kv_heads, head_dim, v_head_dim), qk_norms, call.options
        )
        out = getattr(attention, names.output)
        self.products = attention.q_proj.product, out
        sizes = num_q_heads * head_dim, num_kv_heads * head_dim, num_kv_heads * v_head_dim
        qkv = dict(zip(("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), sizes, strict=True))
        self.linears = qkv, {f"self_attn.{names.output}": out.out_features}

    def mix(self, states: torch.Tensor, rotation: CosSin) -> torch.Tensor:
        num_q_heads, shape = self.parts.num_q_heads, self.parts.cache_shape
        sizes = num_q_heads, shape.num_kv_heads, shape.head_dim
        qk = self._kernels.qk_norm_rope(states, *rotation, *sizes, self.parts.qk_norms)
        value = states[:, (num_q_heads + shape.num_kv_heads) * shape.head_dim :].view(-1, shape.num_kv_heads, shape.v_head_dim)
        query, key = qk[:, :num_q_heads], qk[:, num_q_heads:]
        return current_backend().forward(self.index, query, key, value, **self.parts.options).flatten(1)


class ConvMixer(Mixer):
    """conv: a module to which recurrent layers are attached."""

    def __init__(self, conv: Any) -> None:
        layers, number = conv.recurrent
        weight, bias = conv.conv.weight.data.squeeze(1), None if conv.conv.bias is None else conv.conv.bias.data
        self.index, self.dtype = layers.layer_of[number], weight.dtype
        self.parts: ConvParts = ConvParts(layers, number, weight, bias)
        self.products = conv.in_proj, conv.out_proj
        self.linears = {"conv.in_proj": conv.in_proj.out_features}, {"conv.out_proj": conv.out_proj.out_features}

    def mix(self, states: torch.Tensor, rotation: CosSin) -> torch.Tensor:
        return self.parts.layers.gated_conv(self.parts.number, states, self.parts.weight, self.parts.bias)


def mixer_name(layer: nn.Module, names: LayerNames) -> str | None:
    """The name of the layer's mixer, if it has one of these kinds, and its parts are replaced."""
    conv: Any = getattr(layer, "conv", None)
    if hasattr(conv, "recurrent"):
        known = consists_of(conv, {"in_proj": PackedLinear, "conv": nn.Conv1d, "out_proj": PackedLinear})
        return "conv" if known and conv.in_proj.out_features == 3 * conv.conv.in_channels == 3 * conv.conv.groups else None
    attention: Any = getattr(layer, "self_attn", None)
    parts: dict[str, Any] = {"q_proj": LinearPart, "k_proj": LinearPart, "v_proj": LinearPart, names.output: PackedLinear}
    if hasattr(attention, names.qk_norms[0]):
        parts |= dict.fromkeys(names.qk_norms, FusedRMSNorm)
    return "self_attn" if attention is not None and consists_of(attention, parts) else None


def mixer_of(call: ModuleCall, names: LayerNames, kernels: FusedKernels) -> Mixer | None:
    """The mixer of a layer for which `mixer_name` has found one, from a call; None if it computes more."""
    layer: Any = call.module
    if mixer_name(layer, names) == "conv":
        return None if call.attention else ConvMixer(layer.conv)
    if len(call.attention) != 1:
        return None
    (attention,) = call.attention
    if attention.key.shape[1:] != (attention.value.shape[1], attention.query.shape[2]):
        return None
    if layer.self_attn.q_proj.outputs[1] != attention.query.shape[1:].numel():  # a gate, too
        return None
    return AttentionMixer(layer.self_attn, names, attention, kernels)
