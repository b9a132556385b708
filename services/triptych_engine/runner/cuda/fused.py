"""A GPU's kernels for models whose parts are recognised and replaced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
import triton
from torch import nn

from triptych_engine.runner.attention.paged import AttentionBackend, LayerShape
from triptych_engine.runner.cuda.attention import CudaAttention
from triptych_engine.runner.cuda.kernels import layers as kernels
from triptych_engine.runner.fusion.kernels import GatedRMSNorm, LayerParts, PackedLinear

#: Numbers that a program computes.
_SILU_BLOCK = _ROPE_BLOCK = 1024


class CudaLinear(PackedLinear):
    """One product for several layers. x: [..., in_features], rounded to the weight's dtype; the result is like x."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__(weight.shape[1], weight.shape[0])
        self._weight, self._bias = weight, bias

    @property
    def dtype(self) -> torch.dtype:
        return self._weight.dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x.to(self._weight.dtype), self._weight, self._bias).to(x.dtype)


class CudaHead(CudaLinear):
    """The output head: logits are float32, none of them rounded to 16 bits."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.to(self._weight.dtype)
        if self._weight.device.type != "cuda":  # under Triton's interpreter
            return super().forward(x).float()
        rows = x.reshape(-1, self.in_features)
        logits = torch.mm(rows, self._weight.T, out_dtype=torch.float32)
        if self._bias is not None:
            logits += self._bias
        return logits.view(*x.shape[:-1], self.out_features)


class CudaFusedKernels:
    """See FusedKernels. device: a GPU, or a CPU under Triton's interpreter."""

    fuses = True
    gated_rms_norm: GatedRMSNorm | None = None

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def computes(self, dtype: torch.dtype) -> bool:
        return dtype in (torch.float32, torch.float16, torch.bfloat16)

    def takes(self, linears: Sequence[nn.Module | None]) -> bool:
        return all(type(layer) is nn.Linear for layer in linears)

    def pack(self, *linears: Any) -> PackedLinear:
        weight = torch.cat([linear.weight.data for linear in linears]) if len(linears) > 1 else linears[0].weight.data
        bias = None if linears[0].bias is None else torch.cat([linear.bias.data for linear in linears])
        return CudaLinear(weight, bias)

    def experts(self, experts: nn.Module) -> nn.Module | None:
        return None

    def head(self, linear: nn.Module) -> nn.Module | None:
        if type(linear) is not nn.Linear or linear.weight.dtype == torch.float32:
            return None
        return CudaHead(linear.weight.data, None if linear.bias is None else linear.bias.data)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float, dtype: torch.dtype) -> torch.Tensor:
        x = x.contiguous()
        out = torch.empty(x.shape, dtype=dtype, device=x.device)
        _launch_norm(x, None, weight, None, out, eps)
        return out

    def add_rms_norm(
        self, x: torch.Tensor, added: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        total, out = torch.empty_like(x), torch.empty_like(added)
        _launch_norm(x, added, weight, total, out, eps)
        return total, out

    def qk_norm_rope(
        self,
        qkv: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        num_q_heads: int,
        num_kv_heads: int,
        head_dim: int,
        norms: tuple[torch.Tensor, torch.Tensor, float] | None,
    ) -> torch.Tensor:
        out = torch.empty(qkv.shape[0], num_q_heads + num_kv_heads, head_dim, dtype=qkv.dtype, device=qkv.device)
        shape = LayerShape(num_kv_heads, head_dim, head_dim)
        _launch_rope(qkv, cos, sin, num_q_heads, shape, norms, out, (None, None, None))
        return out

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate_up = gate_up.contiguous()
        size = gate_up.shape[-1] // 2
        out = torch.empty(*gate_up.shape[:-1], size, dtype=gate_up.dtype, device=gate_up.device)
        grid = (gate_up.numel() // (2 * size), triton.cdiv(size, _SILU_BLOCK))
        kernels.silu_mul_kernel[grid](gate_up, out, SIZE=size, BLOCK=_SILU_BLOCK)
        return out

    def whole_layer(self, parts: LayerParts) -> CudaLayers:
        return CudaLayers([parts], self)

    def stack(self, layers: Sequence[CudaLayers]) -> CudaLayers:
        return CudaLayers([parts for layer in layers for parts in layer.parts], self)

    def whole_model(self, *parts: Any) -> None:
        return None

    def attention(self) -> AttentionBackend:
        return CudaAttention(self._device)

    def attends_with(self, backend: AttentionBackend) -> bool:
        return isinstance(backend, CudaAttention)


class CudaLayers:
    """Decoder layers, see WholeLayer and LayerStack: nine launches for each, eleven if a step has decoding sequences whose keys are
    split, and prompts. Keys are rotated on their way to the cache. What a layer adds to the residual stream is added by the next
    one's norm."""

    def __init__(self, parts: Sequence[LayerParts], fused: CudaFusedKernels) -> None:
        self.parts, self._fused = list(parts), fused

    @property
    def shape(self) -> tuple[object, ...]:
        return ()  # layers that differ can be computed one after the other

    def compute(self, backend: CudaAttention, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        added, fused = None, self._fused
        for layer in self.parts:
            qkv, out, gate_up, down = layer.products
            (weight, eps), (mlp_weight, mlp_eps) = layer.norms
            if added is None:
                normed = fused.rms_norm(x, weight, eps, cast(CudaLinear, qkv).dtype)
            else:
                x, normed = fused.add_rms_norm(x, added, weight, eps)
            states, shape = qkv(normed), layer.cache_shape
            query = torch.empty(len(states), layer.num_q_heads, shape.head_dim, dtype=states.dtype, device=states.device)
            place = backend.place(layer.index)
            _launch_rope(states, cos, sin, layer.num_q_heads, shape, layer.qk_norms, query, place)
            attended = backend.attend(layer.index, query, states.dtype, **layer.options)
            x, normed = fused.add_rms_norm(x, out(attended.flatten(1)), mlp_weight, mlp_eps)
            added = down(fused.silu_mul(gate_up(normed)))
        return x if added is None else x + added


def _launch_norm(
    x: torch.Tensor, added: torch.Tensor | None, weight: torch.Tensor, total: torch.Tensor | None, out: torch.Tensor, eps: float
) -> None:
    size = x.shape[-1]
    kernels.rms_norm_kernel[(x.numel() // size,)](
        x, added, weight, total, out, eps, SIZE=size, BLOCK=triton.next_power_of_2(size), IS_ADDED=added is not None,
        num_warps=4 if size <= 2048 else 8,
    )  # fmt: skip


def _launch_rope(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    num_q_heads: int,
    shape: LayerShape,
    norms: tuple[torch.Tensor, torch.Tensor, float] | None,
    out: torch.Tensor,
    place: tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None],
) -> None:
    """place: keys and values of the cache, and the slots of the tokens; without them, keys go to `out`, behind the queries."""
    q_weight, k_weight, eps = norms if norms is not None else (None, None, 0.0)
    has_cache = place[0] is not None
    num_heads = num_q_heads + shape.num_kv_heads * (2 if has_cache else 1)
    block = triton.next_power_of_2(max(shape.head_dim, shape.v_head_dim))
    heads = max(1, _ROPE_BLOCK // block)
    kernels.rope_kernel[(len(qkv), triton.cdiv(num_heads, heads))](
        qkv, cos, sin, q_weight, k_weight, eps, out, *place, qkv.stride(0), out.stride(0), NUM_Q_HEADS=num_q_heads,
        NUM_KV_HEADS=shape.num_kv_heads, HEAD_DIM=shape.head_dim, V_HEAD_DIM=shape.v_head_dim, ROTARY_DIM=cos.shape[-1],
        BLOCK=block, HEADS=heads, HAS_NORMS=norms is not None, HAS_CACHE=has_cache, num_warps=4,
    )  # fmt: skip
