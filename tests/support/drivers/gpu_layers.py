"""Compares a GPU's kernels between matrix products with plain torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from triptych_engine.runner.fusion.kernels import FusedKernels, MoEParts, Norm
from triptych_engine.runner.fusion.modules import ACTIVATIONS


def check_layer_kernels(kernels: FusedKernels, device: torch.device, dtype: torch.dtype, tolerance: float) -> None:
    """Norms, gated activations and rotations of odd sizes, with and without what is optional."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int, dtype: torch.dtype = dtype) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(device, dtype)

    x, added, weight = random(5, 72, dtype=torch.float32), random(5, 72), random(72, dtype=torch.float32)
    _close(kernels.rms_norm(x, weight, 1e-5, dtype), _rms_norm(x, weight, 1e-5), tolerance)
    total, normed = kernels.add_rms_norm(x, added, weight, 1e-5)
    _close(total, x + added.float(), 1e-6)
    _close(normed, _rms_norm(x + added.float(), weight, 1e-5), tolerance)
    assert (total.dtype, normed.dtype) == (torch.float32, dtype)
    _check_sandwich_norm(x, added, Norm(weight, 1e-5), Norm(random(72, dtype=torch.float32), 1e-3), tolerance)

    gate_up = 40 * random(3, 2, 2 * 1100)  # more than a block, and steep
    gate, up = gate_up.float().chunk(2, -1)
    for activation in kernels.activations:
        _close(kernels.act_mul(gate_up, activation), ACTIVATIONS[activation](gate) * up, tolerance)

    for rotary_dim, has_norms in ((24, False), (16, True)):
        qkv = random(7, (6 + 2 + 2) * 24)
        cos, sin = (random(7, rotary_dim // 2, dtype=torch.float32).repeat(1, 2) for _ in range(2))
        norms = (random(24, dtype=torch.float32), random(24, dtype=torch.float32), 1e-6) if has_norms else None
        rotated = kernels.qk_norm_rope(qkv, cos, sin, 6, 2, 24, norms)
        heads = qkv[:, : 8 * 24].float().view(7, 8, 24)
        if norms is not None:
            parts = [_rms_norm(heads[:, :6], norms[0], norms[2]), _rms_norm(heads[:, 6:], norms[1], norms[2])]
            heads = torch.cat(parts, 1)
        _close(rotated, _rotate(heads, cos[:, None], sin[:, None]), tolerance)


def _check_sandwich_norm(x: torch.Tensor, added: torch.Tensor, norm: Norm, post_norm: Norm, tolerance: float) -> None:
    """What is added to the residual stream is normalised first. The last layer's is followed by no norm."""
    from triptych_engine.runner.cuda.fused import Added, add, add_and_norm

    expected = x + _rms_norm(added, post_norm.weight, post_norm.eps)
    total, normed = add_and_norm(x, Added(added, post_norm), norm, added.dtype)
    _close(total, expected, 1e-5)
    _close(normed, _rms_norm(expected, norm.weight, norm.eps), tolerance)
    assert torch.equal(add(x, Added(added, post_norm)), total)


def check_moe(kernels: FusedKernels, parts: MoEParts, num_tokens: int, tolerance: float) -> None:
    """A mixture of experts on random tokens: as a module, and its outputs where the next norm adds them up."""
    from triptych_engine.runner.cuda.fused import Added, add

    hidden, dtype, device = parts.down.shape[1], parts.down.dtype, parts.down.device
    x = torch.randn(num_tokens, hidden, generator=torch.Generator().manual_seed(1)).to(device, dtype)
    moe: Any = kernels.moe(parts)
    expected, counts = _moe(x, parts), moe.new_counts(1)[0]
    _close(moe(x[None])[0], expected, tolerance)
    states, shares = moe.outputs(x, counts)
    stream = torch.linspace(-1, 1, x.numel(), device=device).view(x.shape)
    _close(add(stream, Added(states, None, shares)), stream + expected, tolerance)
    assert int(counts.sum()) == num_tokens * parts.top_k


def a_moe(
    device: torch.device, dtype: torch.dtype, *, num_experts: int, top_k: int, hidden: int, inner: int, **options: Any
) -> MoEParts:
    """Random weights whose results are about 1. options: further ones of MoEParts."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return (torch.randn(*shape, generator=generator) * shape[-1] ** -0.5).to(device, dtype)

    options = {"router_bias": None, "is_normalized": True, "activation": "silu", **options}
    gate_up, down = 2 * random(num_experts, 2 * inner, hidden), 2 * random(num_experts, hidden, inner)
    return MoEParts(router=random(num_experts, hidden), gate_up=gate_up, down=down, top_k=top_k, **options)


def _moe(x: torch.Tensor, parts: MoEParts) -> torch.Tensor:
    """In float32, each token by itself; of equal logits the first expert's counts."""
    logits = nn.functional.linear(x, parts.router, parts.router_bias).float()
    rows = []
    for row, logit in zip(x.float(), logits, strict=True):
        chosen = logit.sort(dim=-1, descending=True, stable=True).indices[: parts.top_k]
        shares = logit[chosen].softmax(0) if parts.is_normalized else logit.softmax(0)[chosen]
        gate, up = (parts.gate_up[chosen].float() @ row).chunk(2, -1)
        inner = ACTIVATIONS[parts.activation](gate) * up
        rows.append((shares[:, None] * (parts.down[chosen].float() @ inner[..., None])[..., 0]).sum(0))
    return torch.stack(rows)


def _rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    rotated, kept = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
    first, second = rotated.chunk(2, -1)
    return torch.cat([rotated * cos + torch.cat([-second, first], -1) * sin, kept], -1)


def _close(got: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    torch.testing.assert_close(got.float(), expected, rtol=tolerance, atol=tolerance)
