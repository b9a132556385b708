"""The CPU's kernels for models whose parts are recognised and replaced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from triptych_engine.runner.attention.paged import AttentionBackend
from triptych_engine.runner.cpu.attention import CpuAttention
from triptych_engine.runner.cpu.kernels import CpuKernels
from triptych_engine.runner.cpu.layer_kernel import LayerKernel, LayerStack
from triptych_engine.runner.cpu.linear.experts import pack_experts
from triptych_engine.runner.cpu.linear.layers import Bf16Linear, KernelLinear, WideHead
from triptych_engine.runner.cpu.linear.packing import can_pack, pack
from triptych_engine.runner.cpu.linear.quant import QuantLinear, UnquantizedLinear
from triptych_engine.runner.cpu.model_kernel import ModelKernel
from triptych_engine.runner.fusion.kernels import GatedRMSNorm, LayerParts, MoEParts, PackedLinear, RecurrentParts
from triptych_engine.runner.fusion.rotary import PositionTables, Rotary
from triptych_engine.runner.quantization.formats import HEAD_ON_THE_FLY, QuantFormat


class CpuFusedKernels:
    """See FusedKernels. Whole layers have no norms behind attention and MLP.

    Args:
        kernels: without them, only linear layers can be packed, by oneDNN.
        form: prepare the linear layers for `quantize`, which will store them in this format; needs kernels.
        batch_invariant: a linear layer's result for a row must not depend on the number of rows.
    """

    rotates_by_layer = False
    activations: Sequence[str] = ("silu",)

    def __init__(self, kernels: CpuKernels | None, *, form: QuantFormat | None = None, batch_invariant: bool = False) -> None:
        self._kernels, self._form, self._batch_invariant = kernels, form, batch_invariant
        self.fuses = kernels is not None
        self.gated_rms_norm: GatedRMSNorm | None = None if kernels is None else kernels.new_recurrent_ops().gated_rms_norm
        if kernels is not None:
            self.rms_norm, self.add_rms_norm = kernels.rms_norm, kernels.add_rms_norm
            self.qk_norm_rope = kernels.qk_norm_rope

    def computes(self, dtype: torch.dtype) -> bool:
        return can_pack(self._kernels, dtype)

    def takes(self, linears: Sequence[nn.Module | None]) -> bool:
        plain = [layer for layer in linears if type(layer) is nn.Linear and can_pack(self._kernels, layer.weight.dtype)]
        quantised = [layer for layer in linears if isinstance(layer, QuantLinear)]
        return len(linears) in (len(plain), len(quantised))

    def pack(self, *linears: Any) -> PackedLinear:
        return pack(self._kernels, *linears, form=self._form, batch_invariant=self._batch_invariant)

    def experts(self, experts: nn.Module) -> nn.Module | None:
        return None if self._kernels is None else pack_experts(experts, self.pack, self._kernels)

    def moe(self, parts: MoEParts) -> None:
        return None

    def head(self, linear: nn.Module) -> nn.Module | None:
        if type(linear) is not nn.Linear or (kernels := self._kernels) is None:
            return None
        dtype = linear.weight.dtype
        if self._form is None and dtype != torch.bfloat16:
            return None
        if self._form is None:
            packed: PackedLinear = Bf16Linear(linear.weight.data, None if linear.bias is None else linear.bias.data, kernels)
        else:
            quant = kernels.quant_kernels(batch_invariant=self._batch_invariant)
            packed = UnquantizedLinear([linear], HEAD_ON_THE_FLY, quant)
        return WideHead(packed) if dtype == torch.bfloat16 else packed

    def act_mul(self, gate_up: torch.Tensor, activation: str) -> torch.Tensor:
        if self._kernels is None or activation != "silu":
            raise ValueError(f"no kernel computes {activation}")
        return self._kernels.silu_mul(gate_up)

    def whole_layer(self, parts: LayerParts) -> LayerKernel | None:
        """The layer as a single kernel, if our own kernels compute all its products, from weights packed in one format."""
        own = [product for product in parts.products if isinstance(product, KernelLinear) and product.weight is not None]
        if self._kernels is None or len(own) < len(parts.products) or len({product.weight_format for product in own}) > 1:
            return None
        if parts.post_norms is not None or parts.moe is not None:
            return None
        if isinstance(parts.mixer, RecurrentParts) and not self._kernels.takes_recurrent(parts.mixer):
            return None
        return LayerKernel(self._kernels, parts)

    def can_stack(self, layers: Sequence[LayerKernel]) -> bool:
        heads = {layer.heads for layer in layers if layer.heads is not None}
        return len({layer.shape for layer in layers}) == 1 and len(heads) <= 1

    def stack(self, layers: Sequence[LayerKernel]) -> LayerStack:
        return LayerStack(layers)

    def whole_model(
        self,
        stack: LayerStack,
        embedding: nn.Module,
        rotary: tuple[Rotary, torch.Tensor, torch.Tensor],
        norm: nn.Module,
        head: nn.Module,
        embedding_scale: float,
    ) -> ModelKernel | None:
        tables = PositionTables.find(*rotary)
        return None if tables is None else ModelKernel.of(stack, embedding, tables, norm, head, embedding_scale)

    def attention(self) -> AttentionBackend:
        if self._kernels is None:
            raise RuntimeError("without kernels no layer is fused")
        return CpuAttention(self._kernels)

    def attends_with(self, backend: AttentionBackend) -> bool:
        return isinstance(backend, CpuAttention)
