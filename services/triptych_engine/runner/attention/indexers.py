"""Lets the indexers of sparse attention (DSA, DeepSeek-V3.2) select keys in the paged cache.

An indexer is a small attention of its own inside of a layer: it keeps one key for each token, and selects for each the
`index_topk` keys with the highest scores. transformers' indexers compute keys and scores here, too. They get what is in the KV
cache by a stand-in for transformers' cache: the keys of an indexer are those of a further layer, behind the model's own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from triptych_engine.runner.attention.paged import AttentionMetadata, backend_of_step
from triptych_engine.runner.attention.selection import ALL_KEYS, NO_MASK, Selection

#: Scores at once, of all heads.
_MOST_SCORES = 1 << 24


def attach_indexers(model: PreTrainedModel) -> None:
    """Let the indexers of a model work on the paged cache, in place, where its attentions get no mask."""
    num_layers = model.config.get_text_config().num_hidden_layers
    for attention in model.modules():
        indexer: Any = getattr(attention, "indexer", None)
        if indexer is not None:
            indexer.forward = _PagedIndexer(indexer, num_layers + int(attention.layer_idx))
            attention.register_forward_pre_hook(_give_no_mask, with_kwargs=True)


def _give_no_mask(attention: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    return args, kwargs if kwargs.get("attention_mask") is not None else {**kwargs, "attention_mask": NO_MASK}


class _PagedIndexer:
    """In the place of an indexer's `forward`, with its arguments. Returns a Selection where there is no mask.

    Args:
        layer: index of its keys in the KV cache.
    """

    def __init__(self, indexer: Any, layer: int) -> None:
        self._indexer, self._forward, self._layer = indexer, indexer.forward, layer

    def __call__(
        self,
        hidden_states: torch.Tensor,
        q_resid: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        attention_mask: Any,
        position_ids: torch.Tensor | None = None,
        past_key_values: Any = None,
    ) -> Any:
        states = hidden_states, q_resid, position_embeddings
        if attention_mask is not NO_MASK:
            return self._forward(*states, attention_mask, position_ids, past_key_values=past_key_values)
        backend: Any = backend_of_step()
        if backend is None:  # attentions are tried
            return ALL_KEYS
        # With one key instead of all, almost nothing is computed besides the keys.
        one = torch.zeros(1, 1, 1, device=hidden_states.device)
        self._forward(*states, one, position_ids, past_key_values=_Writing(backend, self._layer))
        metadata = getattr(backend, "metadata", None)
        most = self._indexer.index_topk
        if metadata is None or (metadata.seq_lens <= most).all():
            return ALL_KEYS
        chosen = [
            self._select(backend, metadata, sequence, states) for sequence in np.flatnonzero(metadata.seq_lens > most).tolist()
        ]
        is_chosen = metadata.positions >= most
        tokens, others = (torch.from_numpy(np.flatnonzero(which)).to(hidden_states.device) for which in (is_chosen, ~is_chosen))
        return Selection(tokens, torch.cat(chosen), (others, metadata.some(~is_chosen)) if len(others) else None)

    def _select(self, backend: Any, metadata: AttentionMetadata, sequence: int, states: tuple[Any, ...]) -> torch.Tensor:
        """[n, index_topk] int64: the slots of the keys of those tokens of a sequence that do not attend to all."""
        hidden_states, q_resid, (cos, sin) = states
        first, last = metadata.query_start_loc[sequence : sequence + 2].tolist()
        num_keys = int(metadata.seq_lens[sequence])
        start = first + max(0, self._indexer.index_topk - (num_keys - (last - first)))
        slots = torch.from_numpy(metadata.key_slots(sequence, backend.block_size)).to(hidden_states.device)
        keys = backend.read(self._layer, slots)[0][None, :, 0].to(hidden_states.dtype)
        size, chosen = max(1, _MOST_SCORES // (self._indexer.n_heads * num_keys)), []
        for begin in range(start, last, size):
            end = min(begin + size, last)
            part = slice(begin, end)
            positions = torch.arange(num_keys - (last - begin), num_keys - (last - end), device=slots.device)
            seen = num_keys - (last - end)
            mask = torch.zeros(1, end - begin, seen, device=slots.device)
            mask.masked_fill_(torch.arange(seen, device=slots.device) > positions[:, None], float("-inf"))
            own = hidden_states[:, part], q_resid[:, part], (cos[:, part], sin[:, part])
            indices = self._forward(*own, mask, None, past_key_values=_Reading(keys[:, :seen]))
            chosen.append(slots[indices[0].long()])
        return torch.cat(chosen)


class _Writing:
    """In the place of transformers' cache: writes an indexer's keys into the KV cache."""

    def __init__(self, backend: Any, layer: int) -> None:
        self._backend, self._layer = backend, layer

    def update_indexer(self, keys: torch.Tensor, layer_idx: int) -> torch.Tensor:
        """Takes [1, num_tokens, head_dim], and returns the first."""
        states = keys[0][:, None]
        self._backend.write(self._layer, states, states)
        return keys[:, :1]


class _Reading:
    """In the place of transformers' cache: has the keys of a sequence, [1, num_keys, head_dim]."""

    def __init__(self, keys: torch.Tensor) -> None:
        self._keys = keys

    def update_indexer(self, keys: torch.Tensor, layer_idx: int) -> torch.Tensor:
        """All keys of the sequence, of which these are the last."""
        return self._keys
