"""A GPU's kernels for models whose parts are recognised and replaced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import triton
from torch import nn

from triptych_engine.runner.attention.paged import AttentionBackend, LayerShape
from triptych_engine.runner.cuda.attention import CudaAttention
from triptych_engine.runner.cuda.kernels import layers as kernels
from triptych_engine.runner.cuda.moe import CudaMoE
from triptych_engine.runner.fusion.kernels import AttentionParts, GatedRMSNorm, LayerParts, MoEParts, Norm, PackedLinear
from triptych_engine.runner.fusion.modules import ACTIVATIONS
from triptych_engine.runner.fusion.rotary import CosSin

#: Numbers that a program computes.
_ACT_BLOCK = _ROPE_BLOCK = 1024


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
    rotates_by_layer = True
    activations: Sequence[str] = tuple(ACTIVATIONS)
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

    def moe(self, parts: MoEParts) -> CudaMoE:
        return CudaMoE(parts)

    def head(self, linear: nn.Module) -> nn.Module | None:
        if type(linear) is not nn.Linear or linear.weight.dtype == torch.float32:
            return None
        return CudaHead(linear.weight.data, None if linear.bias is None else linear.bias.data)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float, dtype: torch.dtype) -> torch.Tensor:
        x = x.contiguous()
        out = torch.empty(x.shape, dtype=dtype, device=x.device)
        _launch_norm(x, None, Norm(weight, eps), None, out)
        return out

    def add_rms_norm(
        self, x: torch.Tensor, added: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return add_and_norm(x, Added(added), Norm(weight, eps), added.dtype)

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

    def act_mul(self, gate_up: torch.Tensor, activation: str) -> torch.Tensor:
        gate_up = gate_up.contiguous()
        size = gate_up.shape[-1] // 2
        out = torch.empty(*gate_up.shape[:-1], size, dtype=gate_up.dtype, device=gate_up.device)
        grid = (gate_up.numel() // (2 * size), triton.cdiv(size, _ACT_BLOCK))
        kernels.act_mul_kernel[grid](gate_up, out, SIZE=size, BLOCK=_ACT_BLOCK, IS_GELU=activation == "gelu_tanh")
        return out

    def whole_layer(self, parts: LayerParts) -> CudaLayers | None:
        mixer = parts.mixer
        if not isinstance(mixer, AttentionParts) or mixer.has_gate or not mixer.is_rotated or parts.residual_scale != 1:
            return None
        return CudaLayers([parts], self)

    def can_stack(self, layers: Sequence[CudaLayers]) -> bool:
        return len(layers) > 0  # layers that differ can be computed one after the other

    def stack(self, layers: Sequence[CudaLayers]) -> CudaLayers:
        return CudaLayers([parts for layer in layers for parts in layer.parts], self)

    def whole_model(self, *parts: Any) -> None:
        return None

    def attention(self) -> AttentionBackend:
        return CudaAttention(self._device)

    def attends_with(self, backend: AttentionBackend) -> bool:
        return isinstance(backend, CudaAttention)


class CudaLayers:
    """Decoder layers, see WholeLayer and LayerStack: nine launches for each, ten for a mixture of experts; two more if a step has
    decoding sequences whose keys are split, and prompts. Keys are rotated on their way to the cache. What a layer adds to the
    residual stream is added by the next one's norm."""

    def __init__(self, parts: Sequence[LayerParts], fused: CudaFusedKernels) -> None:
        self.parts, self._fused = list(parts), fused
        self._mixtures = [layer.moe for layer in parts if isinstance(layer.moe, CudaMoE)]

    def _new_counts(self) -> Iterator[torch.Tensor]:
        """The counts of each mixture, all made by one launch."""
        if not self._mixtures:
            return iter(())
        return iter(max(self._mixtures, key=lambda one: one.num_experts).new_counts(len(self._mixtures)))

    def compute(self, backend: CudaAttention, x: torch.Tensor, rotations: Sequence[CosSin | None]) -> torch.Tensor:
        added: Added | None = None
        counts = self._new_counts()
        for layer, rotation in zip(self.parts, rotations, strict=True):
            cos, sin = cast(CosSin, rotation)
            qkv, out, *mlp = layer.products
            mixer = cast(AttentionParts, layer.mixer)
            dtype, shape, num_q_heads = cast(CudaLinear, qkv).dtype, mixer.cache_shape, mixer.num_q_heads
            attention_norm, mlp_norm = layer.norms
            post_norms = layer.post_norms or (None, None)
            x, normed = add_and_norm(x, added, attention_norm, dtype)
            states = qkv(normed)
            query = torch.empty(len(states), num_q_heads, shape.head_dim, dtype=states.dtype, device=states.device)
            place = backend.place(layer.index)
            _launch_rope(states, cos, sin, num_q_heads, shape, mixer.qk_norms, query, place)
            attended = backend.attend(layer.index, query, states.dtype, **mixer.options)
            x, normed = add_and_norm(x, Added(out(attended.flatten(1)), post_norms[0]), mlp_norm, dtype)
            if isinstance(layer.moe, CudaMoE):
                states, shares = layer.moe.outputs(normed, next(counts))
                added = Added(states, post_norms[1], shares)
            else:
                gate_up, down = mlp
                added = Added(down(self._fused.act_mul(gate_up(normed), layer.activation)), post_norms[1])
        return x if added is None else add(x, added)


@dataclass(frozen=True, slots=True)
class Added:
    """What is added to the residual stream.

    Attributes:
        states: [num_tokens, hidden_size], or [num_tokens * n, hidden_size] with shares.
        norm: of their sum, before it is added.
        shares: [num_tokens, n] fp32, factors of the n states of each token.
    """

    states: torch.Tensor
    norm: Norm | None = None
    shares: torch.Tensor | None = None


def add_and_norm(x: torch.Tensor, added: Added | None, norm: Norm, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """The residual stream with what is added to it, and its norm in `dtype`."""
    total, out = x if added is None else torch.empty_like(x), torch.empty(x.shape, dtype=dtype, device=x.device)
    _launch_norm(x, added, norm, total, out)
    return total, out


def add(x: torch.Tensor, added: Added) -> torch.Tensor:
    """The residual stream with what is added to it."""
    total = torch.empty_like(x)
    _launch_norm(x, added, None, total, None)
    return total


def _launch_norm(
    x: torch.Tensor, added: Added | None, norm: Norm | None, total: torch.Tensor | None, out: torch.Tensor | None
) -> None:
    """x: [..., size]; total: where the sum goes; out: where the norm goes. Without `norm`, only the sum is stored."""
    size = x.shape[-1]
    states, added_norm, shares = (None, None, None) if added is None else (added.states, added.norm, added.shares)
    num_added = 0 if added is None else 1 if shares is None else shares.shape[1]
    added_weight, added_eps = (None, 0.0) if added_norm is None else (added_norm.weight, added_norm.eps)
    weight, eps = (None, 0.0) if norm is None else (norm.weight, norm.eps)
    kernels.rms_norm_kernel[(x.numel() // size,)](
        x, states, shares, added_weight, weight, total, out, added_eps, eps, SIZE=size, BLOCK=triton.next_power_of_2(size),
        NUM_ADDED=num_added, HAS_SHARES=shares is not None, IS_ADDED_NORMED=added_norm is not None, HAS_OUT=norm is not None,
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
