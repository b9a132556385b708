"""Multi-head latent attention (MLA, DeepSeek-V2, arXiv:2405.04434) in its compressed form.

These families compute a latent for each token, from which a product expands a key and a value for each head. A further part of
the key, which is rotated, is common to all heads. Because the products are linear, a query can be multiplied by the weight of its
head's keys instead: it "absorbs" the weight. The weighted sum of latents is multiplied by the weight of its head's values. Then all
heads attend to one key, the latent and the rotated part, and the value is the latent itself. The KV cache keeps only that key.

A token attends to so long a key in more operations than to a head's own. So for a chunk of a prompt, it can take less time to
expand all latents of its sequence first, and to forget the keys and values afterwards.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch

#: Fewer tokens of a sequence are never worth its expanded keys and values.
_LEAST_TOKENS = 16


class HeadProducts(Protocol):
    """A product for each head, each with a weight of its own."""

    in_features: int
    out_features: int

    def __call__(self, x: torch.Tensor, out: torch.Tensor, first_head: int = 0) -> None:
        """Write the products of heads, from the first one on, into `out`.

        Args:
            x: [num_tokens, heads, in_features], or [num_tokens, 1, in_features] for the same inputs of all heads.
            out: [num_tokens, heads, out_features] fp32. The last dimensions of both are dense.
        """
        ...


class LatentHeads:
    """Takes the place of an attention's `expand_kv`, which then passes on the latent, and computes the products of its heads.

    Args:
        absorbing: [qk_nope_head_dim] -> [kv_lora_rank]: what a latent is multiplied by instead of its key.
        values: [kv_lora_rank] -> [v_head_dim].
        keys: [kv_lora_rank] -> [qk_nope_head_dim]; None if latents are never expanded.
    """

    def __init__(self, absorbing: HeadProducts, values: HeadProducts, keys: HeadProducts | None) -> None:
        self._absorbing, self._values, self._keys = absorbing, values, keys

    def __call__(self, latent: torch.Tensor, rotated: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The key and the value of all heads, [1, 1, num_tokens, ...]: the latent with the rotated part, and the latent."""
        return torch.cat([latent, rotated], -1), latent

    @property
    def v_head_dim(self) -> int:
        """Size of a head's value."""
        return self._values.out_features

    @property
    def expands(self) -> bool:
        """Whether latents may be expanded."""
        return self._keys is not None

    def is_expanding_faster(self, num_tokens: np.ndarray, num_keys: np.ndarray, rotated: int) -> np.ndarray:
        """Whether sequences take fewer operations with expanded keys and values, [num_sequences] bool.

        Args:
            num_tokens: [num_sequences], the last ones of each sequence, whose attention is computed.
            num_keys: [num_sequences].
            rotated: qk_rope_head_dim.
        """
        rank, size, v_size = self._values.in_features, self._absorbing.in_features, self._values.out_features
        if not self.expands:
            return np.zeros(len(num_tokens), bool)
        num_pairs = num_tokens * (num_keys - num_tokens / 2)
        absorbed = num_tokens * rank * (size + v_size) + num_pairs * (2 * rank + rotated)
        expanded = num_keys * rank * (size + v_size) + num_pairs * (size + rotated + v_size)
        return (num_tokens >= _LEAST_TOKENS) & (expanded < absorbed)

    def expand(self, latents: torch.Tensor, first_head: int, num_heads: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of some heads, fp32: [num_tokens, num_heads, ...].

        latents: [num_tokens, kv_lora_rank + qk_rope_head_dim], with the rotated part.
        """
        if self._keys is None:
            raise RuntimeError("these latents are never expanded")
        rank, size = self._keys.in_features, self._keys.out_features
        keys = latents.new_empty(len(latents), num_heads, size + latents.shape[1] - rank, dtype=torch.float32)
        values = latents.new_empty(len(latents), num_heads, self._values.out_features, dtype=torch.float32)
        self._keys(latents[:, None, :rank], keys[..., :size], first_head)
        self._values(latents[:, None, :rank], values, first_head)
        keys[..., size:] = latents[:, None, rank:]
        return keys, values

    def absorb(self, query: torch.Tensor) -> torch.Tensor:
        """[num_tokens, num_heads, qk_nope_head_dim + qk_rope_head_dim] -> [num_tokens, num_heads, kv_lora_rank + qk_rope_head_dim],
        fp32."""
        size, rank = self._absorbing.in_features, self._absorbing.out_features
        absorbed = query.new_empty(*query.shape[:2], rank + query.shape[2] - size, dtype=torch.float32)
        self._absorbing(query[..., :size], absorbed[..., :rank])
        absorbed[..., rank:] = query[..., size:]
        return absorbed

    def project(self, attended: torch.Tensor) -> torch.Tensor:
        """The heads' results from their weighted sums of latents: [num_tokens, num_heads, kv_lora_rank] -> [num_tokens, num_heads,
        v_head_dim], of the same dtype."""
        out = attended.new_empty(*attended.shape[:2], self._values.out_features, dtype=torch.float32)
        self._values(attended, out)
        return out.to(attended.dtype)


def latent_heads(module: Any) -> LatentHeads | None:
    """Those of an attention that stores latents; None if it stores the keys and values of its heads."""
    heads = getattr(module, "expand_kv", None)
    return heads if isinstance(heads, LatentHeads) else None


class AttendsToLatents(Protocol):
    """What an attention backend may have besides: a faster way to attend to latents than with absorbing queries in all cases."""

    def forward_latents(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        heads: LatentHeads,
        *,
        scaling: float,
        window: int,
        softcap: float,
    ) -> torch.Tensor:
        """As `attend_to_latents`."""
        ...


def attend_to_latents(
    backend: Any, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, heads: LatentHeads, **options: Any
) -> torch.Tensor:
    """The heads' results, [num_tokens, num_heads, v_head_dim], of a backend whose cache has latents.

    Args:
        query: [num_tokens, num_heads, qk_nope_head_dim + qk_rope_head_dim].
        key: [num_tokens, 1, kv_lora_rank + qk_rope_head_dim]. value: [num_tokens, 1, kv_lora_rank].
        options: of `AttentionBackend.forward`, without sinks.
    """
    absorbed = heads.absorb(query)
    return heads.project(backend.forward(layer, absorbed, key.to(absorbed.dtype), value, sinks=None, **options))
