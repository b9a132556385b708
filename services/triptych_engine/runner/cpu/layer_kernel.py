"""Decoder layers of the common kind as one kernel call, if our own kernels compute all of their parts."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

from triptych_engine.runner.cpu.attention import CpuAttention
from triptych_engine.runner.cpu.kernel_args import DecoderLayerArgs, DecoderStepArgs
from triptych_engine.runner.cpu.kernels import CpuKernels
from triptych_engine.runner.cpu.linear.packing import packed_weight
from triptych_engine.runner.fusion.adapters import current_adapters
from triptych_engine.runner.fusion.kernels import LayerParts
from triptych_engine.runner.fusion.rotary import CosSin


class LayerKernel:
    """Weights and shapes of one layer in the kernel's form.

    Args:
        parts: its products are KernelLinears, all of one format.
    """

    def __init__(self, kernels: CpuKernels, parts: LayerParts) -> None:
        self.kernels, self.index, index = kernels, parts.index, parts.index
        options, shape = parts.options, parts.cache_shape
        products: Any = parts.products
        heads = parts.num_q_heads, shape.num_kv_heads, shape.head_dim, shape.v_head_dim
        sinks = options["sinks"]
        sinks = None if sinks is None else sinks.float().contiguous()
        self._kept_alive = (parts, sinks)
        norm, mlp_norm = parts.norms
        q_norm, k_norm, qk_eps = parts.qk_norms if parts.qk_norms is not None else (None, None, 0.0)
        self.group = heads[0] // heads[1]  # query heads per key head
        self.args = DecoderLayerArgs(
            norm.weight.data_ptr(), mlp_norm.weight.data_ptr(), _address(q_norm), _address(k_norm),
            *(packed_weight(one) for one in products), _address(sinks), parts.ranks, *heads, options["window"], index,
            norm.eps, mlp_norm.eps, qk_eps, options["scaling"], options["softcap"],
        )  # fmt: skip
        self.weight_format: str = products[0].weight_format
        self.words_per_row = kernels.decoder_layer_workspace(self.args, self.weight_format)
        self._alone = LayerStack([self])

    @property
    def shape(self) -> tuple[Any, ...]:
        """What must be equal for layers that are computed in one call: format and sizes of the products, heads."""
        sizes = [(one.in_features, one.out_features) for one in (self.args.qkv, self.args.out, self.args.gate_up, self.args.down)]
        heads = self.args.num_q_heads, self.args.num_kv_heads, self.args.head_dim, self.args.v_head_dim
        return self.weight_format, *sizes, *heads

    def compute(self, backend: CpuAttention, x: torch.Tensor, rotations: Sequence[CosSin]) -> torch.Tensor:
        """Compute only this layer; see `LayerStack.compute`."""
        return self._alone.compute(backend, x, rotations)


class LayerStack:
    """Layers of the same shape that are computed in one call; each one gets the result of the previous one."""

    def __init__(self, layers: Sequence[LayerKernel]) -> None:
        self._first = layers[0]
        self._args = [layer.args for layer in layers]  # kept alive
        self._addresses = (ctypes.c_void_p * len(layers))(*map(ctypes.addressof, self._args))
        self._indices = tuple(layer.index for layer in layers)

    def compute(self, backend: CpuAttention, x: torch.Tensor, rotations: Sequence[CosSin]) -> torch.Tensor:
        """See `fusion.kernels.LayerStack`."""
        out, (cos, sin) = torch.empty_like(x), rotations[0]
        self.run(backend, x.shape[0], x=x.data_ptr(), out=out.data_ptr(), cos=cos, sin=sin)
        return out

    def run(self, backend: CpuAttention, num_tokens: int, *, cos: torch.Tensor, sin: torch.Tensor, **fields: int | None) -> None:
        """Call the kernel. fields: of DecoderStepArgs, besides those that are known here."""
        kernels = self._first.kernels
        attention, k_caches, v_caches = backend.layer_args(self._indices, self._first.group)
        adapters = current_adapters()
        slots, tables = (None, None) if adapters is None else (adapters.slots.ctypes.data, adapters.tables)
        step = DecoderStepArgs(
            attention=attention, layers=ctypes.addressof(self._addresses), k_caches=k_caches, v_caches=v_caches,
            cos=cos.data_ptr(), sin=sin.data_ptr(), workspace=kernels.workspace(num_tokens, self._first.words_per_row),
            stage_ns=kernels.stage_ns, lora_slots=slots, lora_adapters=tables, num_layers=len(self._indices),
            rotary_dim=cos.shape[-1], cache_bits=8 * backend.dtype.itemsize, **fields,
        )  # fmt: skip
        kernels.decoder_layers[self._first.weight_format](ctypes.byref(step))

    @property
    def weight_format(self) -> str:
        """The format of all of their products."""
        return self._first.weight_format


def _address(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
