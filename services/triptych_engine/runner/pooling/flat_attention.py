"""Attention in which each token attends to all tokens of its own text, over a ragged batch without padding.

The batch is sorted by length, so texts of the same length lie side by side, and each length takes one call of torch's attention.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

FLAT_ATTENTION = "triptych_flat"


@dataclass(frozen=True, slots=True)
class EqualLengths:
    """Texts of the same length that lie side by side in a batch."""

    first: int  # index of their first token
    count: int
    length: int  # tokens of each text

    @property
    def tokens(self) -> slice:
        return slice(self.first, self.first + self.count * self.length)


_groups: ContextVar[tuple[EqualLengths, ...]] = ContextVar("groups of texts of equal length")


@contextmanager
def attending_within(groups: tuple[EqualLengths, ...]) -> Iterator[None]:
    """Attention in the block is over these groups, which make up the batch."""
    token = _groups.set(groups)
    try:
        yield
    finally:
        _groups.reset(token)


def flat_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Called by transformers' models. query, key, value: [1, num_heads, num_tokens, head_dim]; result:
    [1, num_tokens, num_heads, head_dim].

    Args:
        attention_mask: ignored; the groups say who attends to whom.
        sliding_window: tokens attend to others that are fewer positions away than this.
    """
    out = torch.empty_like(query.transpose(1, 2), memory_format=torch.contiguous_format)
    for group in _groups.get():
        shape = (query.shape[1], group.count, group.length, -1)
        q, k, v = (tensor[0, :, group.tokens].unflatten(1, shape[1:3]).transpose(0, 1) for tensor in (query, key, value))
        mask = _band(group.length, sliding_window, query.device) if sliding_window and sliding_window < group.length else None
        attended = scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scaling)  # [count, num_heads, length, head_dim]
        out[0, group.tokens].unflatten(0, shape[1:3]).copy_(attended.transpose(1, 2))
    return out, None


def _band(length: int, window: int, device: torch.device) -> torch.Tensor:
    """[length, length] bool, which tokens attend to which."""
    positions = torch.arange(length, device=device)
    return (positions[:, None] - positions[None]).abs() < window


AttentionInterface.register(FLAT_ATTENTION, flat_attention)
