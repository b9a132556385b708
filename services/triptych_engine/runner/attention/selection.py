"""Sparse attention to selected keys (DeepSeek-V3.2), over the paged cache.

A token with many keys before it attends to some of them only, those that an indexer selects (indexers.py). These are gathered from
the cache in plain torch. Tokens with few enough keys attend to all of them, in the same way as in other models.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

#: Gathered numbers at once.
_MOST_NUMBERS = 1 << 24


class NoMask:
    """In the place of a mask in modules that cut one for their indexer."""

    def __getitem__(self, index: object) -> NoMask:
        return self


NO_MASK = NoMask()


@dataclass(frozen=True)
class Selection:
    """The tokens of a step that do not attend to all keys.

    Attributes:
        tokens: [n] int64, in the flat batch; empty if all tokens attend to all their keys.
        slots: [n, number of keys] int64, of the keys of each, in the KV cache.
        others: the other tokens, int64, and the metadata of a step of these alone; None if there are none.
    """

    tokens: torch.Tensor
    slots: torch.Tensor
    others: tuple[torch.Tensor, Any] | None


#: Every token attends to all keys before it.
ALL_KEYS = Selection(torch.empty(0, dtype=torch.int64), torch.empty(0, 0, dtype=torch.int64), None)


def attend_to_selected(
    backend: Any,
    layer: int,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    heads: Any | None,
    selection: Selection,
    attend_to_all: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor],
    *,
    scaling: float,
    window: int,
    softcap: float,
) -> torch.Tensor:
    """[num_tokens, num_q_heads, v_head_dim] of the values' dtype. Shapes as of `AttentionBackend.forward`.

    Args:
        backend: has `metadata` and `read` besides.
        heads: LatentHeads, if the cache has latents; then key and value are these.
        attend_to_all: computes queries, keys and values of tokens that attend to all their keys.
    """
    if not len(selection.tokens):
        return attend_to_all(query, key, value)
    if window or softcap:
        raise RuntimeError("selected keys do not go together with windows and soft caps")
    own, whole = query if heads is None else heads.absorb(query), backend.metadata
    backend.write(layer, key.to(own.dtype), value)
    out = value.new_empty(*query.shape[:2], value.shape[2] if heads is None else heads.v_head_dim)
    if selection.others is not None:
        tokens, metadata = selection.others
        backend.begin(metadata)
        out[tokens] = attend_to_all(query[tokens], key[tokens], value[tokens])
        backend.begin(whole)
    attended = _attend(backend, layer, own[selection.tokens], selection.slots, scaling).to(value.dtype)
    out[selection.tokens] = attended if heads is None else heads.project(attended)
    return out


def _attend(backend: Any, layer: int, query: torch.Tensor, slots: torch.Tensor, scaling: float) -> torch.Tensor:
    """[n, num_q_heads, v_head_dim] fp32: of each query to the keys in its slots. In pieces, because each has keys of its own."""
    outs, num_kv_heads = [], backend.read(layer, slots[:1, :1])[0].shape[2]
    numbers = slots.shape[1] * (num_kv_heads * query.shape[2] + query.shape[1])
    size = max(1, _MOST_NUMBERS // numbers)
    for queries, some in zip(query.float().split(size), slots.split(size), strict=True):
        keys, values = (states.float() for states in backend.read(layer, some))
        grouped = queries.unflatten(1, (num_kv_heads, -1))
        weights = (torch.einsum("nhgd,nkhd->nhgk", grouped, keys) * scaling).softmax(-1)
        outs.append(torch.einsum("nhgk,nkhd->nhgd", weights, values).flatten(1, 2))
    return torch.cat(outs)
