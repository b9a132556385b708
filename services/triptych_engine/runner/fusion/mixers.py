"""The part of a decoder layer in which tokens read others, between its input product and its output product: an attention, with a
gate or without; a short convolution between two gates (LFM2); or a recurrence behind a convolution, which is a gated delta rule
(Qwen3.5) or Mamba-2 (Granite 4)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional

from triptych_engine.runner.attention.paged import LayerShape, current_backend
from triptych_engine.runner.fusion.calls import AttentionCall, ModuleCall
from triptych_engine.runner.fusion.kernels import AttentionParts, FusedKernels, PackedLinear, RecurrenceParts, RecurrentParts
from triptych_engine.runner.fusion.modules import FusedGatedRMSNorm, FusedRMSNorm, LinearPart
from triptych_engine.runner.fusion.recognition import LayerNames, consists_of
from triptych_engine.runner.fusion.rotary import CosSin
from triptych_engine.runner.recurrent.ops import Recurrence


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
    parts: AttentionParts | RecurrentParts
    products: tuple[PackedLinear, PackedLinear]
    linears: tuple[dict[str, int], dict[str, int]]
    dtype: torch.dtype

    @abstractmethod
    def mix(self, states: torch.Tensor, rotation: CosSin | None) -> torch.Tensor:
        """What the output product gets.

        Args:
            states: [num_tokens, outputs of the input product].
            rotation: of the tokens' positions; only an attention needs it, if it rotates.
        """


class AttentionMixer(Mixer):
    """call: what the layer passes to its attention, for the shapes and the options; has_gate, is_rotated: see AttentionParts."""

    def __init__(
        self, attention: Any, names: LayerNames, call: AttentionCall, kernels: FusedKernels, *, has_gate: bool, is_rotated: bool
    ) -> None:
        num_q_heads, head_dim = call.query.shape[1:]
        num_kv_heads, v_head_dim = call.value.shape[1:]
        qk_norms = None
        if hasattr(attention, names.qk_norms[0]):
            q_norm, k_norm = (getattr(attention, name) for name in names.qk_norms)
            qk_norms = (q_norm.scale, k_norm.scale, q_norm.eps)
        self.index, self.dtype, self._kernels = call.layer, call.value.dtype, kernels
        shape = LayerShape(num_kv_heads, head_dim, v_head_dim)
        self.parts: AttentionParts = AttentionParts(num_q_heads, shape, qk_norms, call.options, has_gate, is_rotated)
        out = getattr(attention, names.output)
        self.products = attention.q_proj.product, out
        sizes = (1 + has_gate) * num_q_heads * head_dim, num_kv_heads * head_dim, num_kv_heads * v_head_dim
        qkv = dict(zip(("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), sizes, strict=True))
        self.linears = qkv, {f"self_attn.{names.output}": out.out_features}

    def mix(self, states: torch.Tensor, rotation: CosSin | None) -> torch.Tensor:
        num_q_heads, shape = self.parts.num_q_heads, self.parts.cache_shape
        gate = None
        if self.parts.has_gate:
            query, others = states.split([2 * num_q_heads * shape.head_dim, states.shape[1] - 2 * num_q_heads * shape.head_dim], 1)
            query, gate = query.view(-1, num_q_heads, 2, shape.head_dim).unbind(2)
            states = torch.cat([query.flatten(1), others], 1)
        sizes = num_q_heads, shape.num_kv_heads, shape.head_dim
        if not self.parts.is_rotated:
            qk = states[:, : sum(sizes[:2]) * shape.head_dim].unflatten(1, (-1, shape.head_dim))
        elif rotation is not None:
            qk = self._kernels.qk_norm_rope(states, *rotation, *sizes, self.parts.qk_norms)
        else:
            raise ValueError(f"the attention of layer {self.index} gets no cosines and sines")
        value = states[:, (num_q_heads + shape.num_kv_heads) * shape.head_dim :].view(-1, shape.num_kv_heads, shape.v_head_dim)
        query, key = qk[:, :num_q_heads], qk[:, num_q_heads:]
        attended = current_backend().forward(self.index, query, key, value, **self.parts.options)
        return (attended if gate is None else attended * gate.sigmoid()).flatten(1)


class RecurrentMixer(Mixer):
    """What has a state, from a module to which recurrent layers are attached."""

    def __init__(self, module: Any, conv: nn.Conv1d, recurrence: RecurrenceParts | None = None) -> None:
        layers, number = module.recurrent
        weight, bias = conv.weight.data.squeeze(1), None if conv.bias is None else conv.bias.data
        self.index, self.dtype = layers.layer_of[number], weight.dtype
        self.parts: RecurrentParts = RecurrentParts(layers, number, weight, bias, recurrence)


class ConvMixer(RecurrentMixer):
    """A convolution between two gates."""

    def __init__(self, conv: Any) -> None:
        super().__init__(conv, conv.conv)
        self.products = conv.in_proj, conv.out_proj
        self.linears = {"conv.in_proj": conv.in_proj.out_features}, {"conv.out_proj": conv.out_proj.out_features}

    def mix(self, states: torch.Tensor, rotation: CosSin | None) -> torch.Tensor:
        parts = self.parts
        return parts.layers.convolve(parts.number, states, parts.weight, parts.bias, is_gated=True)


class DeltaRuleMixer(RecurrentMixer):
    """A gated delta rule. Its input product has queries, keys, values, gates, and what beta and decay are made of."""

    def __init__(self, module: Any, norm: FusedGatedRMSNorm) -> None:
        num_heads, value_dim = len(module.A_log), len(norm.scale)
        rates, bias = -module.A_log.data.float().exp(), module.dt_bias.data.float().contiguous()
        rule = RecurrenceParts(rates, bias, norm.norm, module.num_k_heads, num_heads, module.head_k_dim, value_dim)
        super().__init__(module, module.conv1d, rule)
        self.products, self._norm = (module.in_proj_qkv.product, module.out_proj), norm
        keys, values = module.num_k_heads * module.head_k_dim, num_heads * value_dim
        self._sizes = [2 * keys + values, values, num_heads, num_heads]
        self._qkv_sizes = [keys, keys, values]
        self.linears = (
            {f"linear_attn.{name}": size for name, size in zip(_DELTA_RULE_INPUTS, self._sizes, strict=True)},
            {"linear_attn.out_proj": module.out_proj.out_features},
        )

    def mix(self, states: torch.Tensor, rotation: CosSin | None) -> torch.Tensor:
        parts, rule = self.parts, cast(RecurrenceParts, self.parts.recurrence)
        qkv, gate, beta, decay = states.split(self._sizes, 1)
        qkv = parts.layers.convolve(parts.number, qkv, parts.weight, parts.bias, silu=True)
        query, key, value = qkv.split(self._qkv_sizes, 1)
        inputs = Recurrence(
            query=query.unflatten(1, (-1, rule.key_dim)),
            key=key.unflatten(1, (-1, rule.key_dim)),
            value=value.unflatten(1, (-1, rule.value_dim)),
            decay=(rule.decay_rates * functional.softplus(decay.float() + rule.decay_bias)).exp(),
            beta=beta.sigmoid().float(),
            has_delta_rule=True,
            normalizes=True,
            scale=rule.key_dim**-0.5,
        )
        out = parts.layers.recur(parts.number, inputs)
        return self._norm(out, gate.unflatten(1, (-1, rule.value_dim)).contiguous()).flatten(1)


class MambaMixer(RecurrentMixer):
    """Mamba-2. Its input product has gates, values, keys, queries (which are called x, B and C there), and what time steps are made
    of."""

    def __init__(self, module: Any, norm: FusedGatedRMSNorm) -> None:
        num_heads, keys, values = len(module.A_log), module.n_groups * module.ssm_state_size, len(norm.scale)
        rates, bias, skip = (
            -module.A_log.data.float().exp(),
            module.dt_bias.data.float().contiguous(),
            module.D.data.float().contiguous(),
        )
        sizes = module.n_groups, num_heads, module.ssm_state_size, values // num_heads
        super().__init__(module, module.conv1d, RecurrenceParts(rates, bias, norm.norm, *sizes, skip))
        self.products, self._norm = (module.in_proj, module.out_proj), norm
        self._sizes, self._conv_sizes = [values, values + 2 * keys, num_heads], [values, keys, keys]
        self.linears = {"mamba.in_proj": module.in_proj.out_features}, {"mamba.out_proj": module.out_proj.out_features}

    def mix(self, states: torch.Tensor, rotation: CosSin | None) -> torch.Tensor:
        parts, own = self.parts, cast(RecurrenceParts, self.parts.recurrence)
        gate, convolved, time_step = states.split(self._sizes, 1)
        convolved = parts.layers.convolve(parts.number, convolved, parts.weight, parts.bias, silu=True)
        value, key, query = convolved.split(self._conv_sizes, 1)
        time_step = functional.softplus(time_step.float() + own.decay_bias)
        inputs = Recurrence(
            query=query.unflatten(1, (-1, own.key_dim)),
            key=key.unflatten(1, (-1, own.key_dim)),
            value=value.unflatten(1, (-1, own.value_dim)),
            decay=(own.decay_rates * time_step).exp(),
            beta=time_step,
            skip=own.skip,
        )
        return self._norm(parts.layers.recur(parts.number, inputs).flatten(1), gate.contiguous())


def mixer_name(layer: nn.Module, names: LayerNames) -> str | None:
    """The name of the layer's mixer, if it has one of these kinds, and its parts are replaced."""
    parts = {name: getattr(layer, name, None) for name in _KINDS}
    return next((name for name, part in parts.items() if isinstance(part, nn.Module) and _KINDS[name](part, names)), None)


def _is_attention(attention: Any, names: LayerNames) -> bool:
    parts: dict[str, Any] = {"q_proj": LinearPart, "k_proj": LinearPart, "v_proj": LinearPart, names.output: PackedLinear}
    if hasattr(attention, names.qk_norms[0]):
        parts |= dict.fromkeys(names.qk_norms, FusedRMSNorm)
    return consists_of(attention, parts)


def _is_conv(conv: Any, names: LayerNames) -> bool:
    parts = {"in_proj": PackedLinear, "conv": nn.Conv1d, "out_proj": PackedLinear}
    if not hasattr(conv, "recurrent") or not consists_of(conv, parts):
        return False
    return bool(conv.in_proj.out_features == 3 * conv.conv.in_channels == 3 * conv.conv.groups)


def _is_delta_rule(module: Any, names: LayerNames) -> bool:
    parts = dict.fromkeys(_DELTA_RULE_INPUTS, LinearPart)
    if not consists_of(module, {**parts, "conv1d": nn.Conv1d, "norm": FusedGatedRMSNorm, "out_proj": PackedLinear}):
        return False
    if not _has(module, ("A_log", "dt_bias"), ("num_k_heads", "head_k_dim")) or module.norm.gates_first:
        return False
    num_heads = len(module.A_log)
    keys, values = module.num_k_heads * module.head_k_dim, num_heads * len(module.norm.scale)
    sizes = [getattr(module, name).outputs[1] for name in _DELTA_RULE_INPUTS]
    return sizes == [2 * keys + values, values, num_heads, num_heads] and module.conv1d.groups == sizes[0]


def _is_mamba(module: Any, names: LayerNames) -> bool:
    parts = {"in_proj": PackedLinear, "conv1d": nn.Conv1d, "norm": FusedGatedRMSNorm, "out_proj": PackedLinear}
    if not consists_of(module, parts) or not module.norm.gates_first:
        return False
    limit = getattr(module, "time_step_limit", None)  # of time steps that a trial's inputs need not reach
    if not _has(module, ("A_log", "dt_bias", "D"), ("n_groups", "ssm_state_size")) or tuple(limit or ()) != (0.0, math.inf):
        return False
    num_heads, keys, values = len(module.A_log), module.n_groups * module.ssm_state_size, len(module.norm.scale)
    is_divided = values % num_heads == 0 == num_heads % module.n_groups
    fits = module.in_proj.out_features == 2 * values + 2 * keys + num_heads and module.conv1d.groups == values + 2 * keys
    return is_divided and fits


def _has(module: Any, vectors: Sequence[str], numbers: Sequence[str]) -> bool:
    """Whether it has a recurrence with these vectors, one number for each head, and these integers."""
    given = [getattr(module, name, None) for name in vectors]
    shapes = {one.shape if isinstance(one, torch.Tensor) and one.ndim == 1 else None for one in given}
    return (
        hasattr(module, "recurrent")
        and len(shapes) == 1
        and None not in shapes
        and all(isinstance(getattr(module, name, None), int) for name in numbers)
    )


#: Linear layers of the input product of a gated delta rule, in this order.
_DELTA_RULE_INPUTS = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")
#: The name of a mixer in its layer -> whether it is of its kind.
_KINDS: dict[str, Callable[[Any, LayerNames], bool]] = {
    "self_attn": _is_attention,
    "conv": _is_conv,
    "linear_attn": _is_delta_rule,
    "mamba": _is_mamba,
}


def mixer_of(call: ModuleCall, names: LayerNames, kernels: FusedKernels) -> Mixer | None:
    """The mixer of a layer for which `mixer_name` has found one, from a call; None if it computes more."""
    layer: Any = call.module
    name = mixer_name(layer, names)
    if name != "self_attn":
        return None if call.attention else _recurrent_mixer(layer, name)
    if len(call.attention) != 1:
        return None
    (attention,) = call.attention
    if attention.key.shape[1:] != (attention.value.shape[1], attention.query.shape[2]):
        return None
    num_gates, rest = divmod(layer.self_attn.q_proj.outputs[1], attention.query.shape[1:].numel())
    is_rotated = call.position_embeddings is not None
    if not is_rotated and hasattr(layer.self_attn, names.qk_norms[0]):  # no kernel only normalises
        return None
    if rest or num_gates not in (1, 2) or (num_gates == 2 and attention.value.shape[2] != attention.query.shape[2]):
        return None
    return AttentionMixer(layer.self_attn, names, attention, kernels, has_gate=num_gates == 2, is_rotated=is_rotated)


def _recurrent_mixer(layer: Any, name: str | None) -> Mixer | None:
    if name == "conv":
        return ConvMixer(layer.conv)
    if name == "linear_attn":
        return DeltaRuleMixer(layer.linear_attn, layer.linear_attn.norm)
    return MambaMixer(layer.mamba, layer.mamba.norm) if name == "mamba" else None
