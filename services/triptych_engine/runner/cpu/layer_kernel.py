"""Decoder layers of the common kind as one kernel call, if our own kernels compute all of their parts."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

from triptych_engine.runner.cpu.attention import CpuAttention
from triptych_engine.runner.cpu.kernel_args import DecoderLayerArgs, DecoderStepArgs, RecurrentLayerArgs
from triptych_engine.runner.cpu.kernels import CpuKernels
from triptych_engine.runner.cpu.linear.packing import packed_weight
from triptych_engine.runner.cpu.recurrent_kernels import segments_of
from triptych_engine.runner.fusion.adapters import current_adapters
from triptych_engine.runner.fusion.kernels import AttentionParts, LayerParts, RecurrentParts
from triptych_engine.runner.fusion.rotary import CosSin


class LayerKernel:
    """Weights and shapes of one layer in the kernel's form.

    Args:
        parts: its products are KernelLinears, all of one format.
    """

    def __init__(self, kernels: CpuKernels, parts: LayerParts) -> None:
        self.kernels, self.index, self.mixer = kernels, parts.index, parts.mixer
        products: Any = parts.products
        fields, *kept_alive = _fields_of(parts.mixer)
        self._kept_alive = (parts, kept_alive)
        norm, mlp_norm = parts.norms
        product_fields = zip(("in_", "out", "gate_up", "down"), map(packed_weight, products), strict=True)
        self.args = DecoderLayerArgs(
            norm=norm.weight.data_ptr(), mlp_norm=mlp_norm.weight.data_ptr(), norm_eps=norm.eps, mlp_norm_eps=mlp_norm.eps,
            index=parts.index, ranks=parts.ranks, residual_scale=parts.residual_scale, **dict(product_fields), **fields,
        )  # fmt: skip
        self.weight_format: str = products[0].weight_format
        #: What must be equal for layers that are computed in one call; of those with an attention, also its heads, and whether
        #: it is rotated.
        self.shape = self.weight_format, self.args.in_.in_features
        sizes = self.args.num_q_heads, self.args.num_kv_heads, self.args.head_dim, self.args.v_head_dim
        self.heads = None if isinstance(parts.mixer, RecurrentParts) else (*sizes, parts.mixer.is_rotated)
        self._alone = LayerStack([self])

    def compute(self, backend: CpuAttention, x: torch.Tensor, rotations: Sequence[CosSin | None]) -> torch.Tensor:
        """Compute only this layer; see `LayerStack.compute`."""
        return self._alone.compute(backend, x, rotations)


def _fields_of(parts: AttentionParts | RecurrentParts) -> tuple[Any, ...]:
    """Fields of DecoderLayerArgs, and what must be kept alive for them."""
    if isinstance(parts, RecurrentParts):
        args, *kept_alive = _recurrent_args(parts)
        return {"recurrent": ctypes.addressof(args)}, args, *kept_alive
    options, shape = parts.options, parts.cache_shape
    sinks = None if options["sinks"] is None else options["sinks"].float().contiguous()
    q_norm, k_norm, qk_eps = parts.qk_norms if parts.qk_norms is not None else (None, None, 0.0)
    fields = {
        "num_q_heads": parts.num_q_heads,
        "num_kv_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "v_head_dim": shape.v_head_dim,
        "has_gate": parts.has_gate,
        "q_norm": _address(q_norm),
        "k_norm": _address(k_norm),
        "qk_norm_eps": qk_eps,
        "sinks": _address(sinks),
        **{name: options[name] for name in ("window", "scaling", "softcap")},
    }
    return fields, sinks


def _recurrent_args(parts: RecurrentParts) -> tuple[Any, ...]:
    weight, bias = parts.weight.float().T.contiguous(), None if parts.bias is None else parts.bias.float().contiguous()
    args = RecurrentLayerArgs(conv_weight=weight.data_ptr(), conv_bias=_address(bias), conv_width=len(weight) - 1)
    if (own := parts.recurrence) is not None:
        args.decay_rates, args.decay_bias, args.skip = own.decay_rates.data_ptr(), own.decay_bias.data_ptr(), _address(own.skip)
        args.norm, args.norm_eps = own.norm.weight.data_ptr(), own.norm.eps
        args.num_key_heads, args.num_heads = own.num_key_heads, own.num_heads
        args.key_dim, args.value_dim = own.key_dim, own.value_dim
    return args, weight, bias, own


class LayerStack:
    """Layers that are computed in one call (see `CpuFusedKernels.can_stack`); each one gets the result of the previous one."""

    def __init__(self, layers: Sequence[LayerKernel]) -> None:
        self._first = layers[0]
        self._args = [layer.args for layer in layers]  # kept alive
        self._addresses = (ctypes.c_void_p * len(layers))(*map(ctypes.addressof, self._args))
        self._words_per_row = self._first.kernels.decoder_layers_workspace(self._addresses, self.weight_format)
        self._indices = tuple(layer.index for layer in layers)
        self._group = next((layer.heads[0] // layer.heads[1] for layer in layers if layer.heads is not None), 0)
        self._recurrent = [(number, layer.mixer) for number, layer in enumerate(layers) if isinstance(layer.mixer, RecurrentParts)]

    def compute(self, backend: CpuAttention, x: torch.Tensor, rotations: Sequence[CosSin | None]) -> torch.Tensor:
        """See `fusion.kernels.LayerStack`."""
        none = x.new_empty(0, 0)
        out, (cos, sin) = torch.empty_like(x), next(filter(None, rotations), (none, none))
        self.run(backend, x.shape[0], x=x.data_ptr(), out=out.data_ptr(), cos=cos, sin=sin)
        return out

    def run(self, backend: CpuAttention, num_tokens: int, *, cos: torch.Tensor, sin: torch.Tensor, **fields: int | None) -> None:
        """Call the kernel. fields: of DecoderStepArgs, besides those that are known here."""
        kernels = self._first.kernels
        attention, k_caches, v_caches = backend.layer_args(self._indices, self._group)
        adapters = current_adapters()
        slots, tables = (None, None) if adapters is None else (adapters.slots.ctypes.data, adapters.tables)
        recurrent, *_kept_alive = self._recurrent_fields(num_tokens)
        step = DecoderStepArgs(
            attention=attention, layers=ctypes.addressof(self._addresses), k_caches=k_caches, v_caches=v_caches,
            cos=cos.data_ptr(), sin=sin.data_ptr(),
            workspace=kernels.workspace(num_tokens, self._words_per_row), stage_ns=kernels.stage_ns, lora_slots=slots,
            lora_adapters=tables, num_layers=len(self._indices), rotary_dim=cos.shape[-1], cache_bits=8 * backend.dtype.itemsize,
            **recurrent, **fields,
        )  # fmt: skip
        kernels.decoder_layers[self.weight_format](ctypes.byref(step))

    def _recurrent_fields(self, num_tokens: int) -> tuple[Any, ...]:
        """Fields of DecoderStepArgs for recurrent layers, and what must be kept alive for them."""
        if not self._recurrent:
            return ({},)
        convs, matrices = ((ctypes.c_void_p * len(self._indices))() for _ in range(2))
        kept_alive: list[Any] = [convs, matrices]
        for number, parts in self._recurrent:
            step, state = parts.layers.conv_state(parts.number, num_tokens, parts.weight)
            convs[number] = state.data_ptr()
            kept_alive += [step, state]
            if (own := parts.recurrence) is not None:
                sizes = own.num_heads, own.key_dim, own.value_dim
                _, state = parts.layers.matrix_state(parts.number, num_tokens, *sizes, state.device)
                matrices[number] = state.data_ptr()
                kept_alive.append(state)
        segments = segments_of(step)
        addresses = {"conv_states": convs, "matrix_states": matrices, "segments": segments}
        return {name: ctypes.addressof(one) for name, one in addresses.items()}, segments, kept_alive

    @property
    def weight_format(self) -> str:
        """The format of all of their products."""
        return self._first.weight_format


def _address(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
