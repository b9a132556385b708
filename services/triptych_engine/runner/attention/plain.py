"""Paged attention in plain torch."""

from __future__ import annotations

import numpy as np
import torch

from triptych_engine.runner.attention.paged import AttentionMetadata, LayerShape


class TorchAttention:
    """Paged attention in plain torch, sequence by sequence. It works on any device and with any shape, but it is slow.

    The reference for the other backends, and the fallback where none of them works.
    """

    name = "torch"

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._cache: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._in_keys: set[int] = set()  # layers whose values are in their keys
        self._chunks: dict[int, int] = {}  # layer -> chunk, of those that have one

    def allocate(self, layers: dict[int, LayerShape], num_blocks: int, block_size: int, dtype: torch.dtype) -> None:
        slots = num_blocks * block_size
        self._block_size = block_size
        self._in_keys = {index for index, shape in layers.items() if shape.values_in_keys}
        self._chunks = {index: shape.chunk for index, shape in layers.items() if shape.chunk}
        self._cache = {}
        for index, shape in layers.items():
            keys = torch.empty(slots, shape.num_kv_heads, shape.head_dim, dtype=dtype, device=self._device)
            size = slots, shape.num_kv_heads, shape.v_head_dim
            values = keys[..., : shape.v_head_dim] if shape.values_in_keys else torch.empty(size, dtype=dtype, device=self._device)
            self._cache[index] = keys, values

    def attach(self, cache: dict[int, tuple[torch.Tensor, torch.Tensor]], block_size: int) -> None:
        """Work on a cache that another backend owns.

        Args:
            cache: layer -> keys and values, [num_slots, num_kv_heads, head_dim] each.
        """
        self._cache, self._block_size, self._in_keys, self._chunks = cache, block_size, set(), {}

    def prefault(self) -> None:
        pass

    def free(self) -> None:
        self._cache = {}

    def blocks(self) -> list[torch.Tensor]:
        stored = [part for layer, pair in self._cache.items() for part in pair[: 1 if layer in self._in_keys else 2]]
        return [part.unflatten(0, (-1, self._block_size)) for part in stored]

    def read(self, layer: int, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of slots, [*slots.shape, num_kv_heads, head_dim] each."""
        keys, values = self._cache[layer]
        return keys[slots], values[slots]

    @property
    def block_size(self) -> int:
        return self._block_size

    def begin(self, metadata: AttentionMetadata) -> None:
        self.metadata = metadata
        self._slots = torch.from_numpy(metadata.slots).to(self._device)
        self._sequences = []
        offsets = np.arange(self._block_size)
        key_ends = [metadata.key_ends(has_window=has_window) for has_window in (False, True)]
        for i in range(metadata.num_seqs):
            num_keys = int(metadata.seq_lens[i])
            blocks = metadata.block_table[i, : -(-num_keys // self._block_size)].astype(np.int64)
            keys = (blocks[:, None] * self._block_size + offsets).reshape(-1)[:num_keys]
            first, last = metadata.query_start_loc[i : i + 2].tolist()
            ends = [of_layer[first:last] for of_layer in key_ends]
            self._sequences.append((first, last, *(torch.from_numpy(a).to(self._device) for a in (keys, *ends))))

    def forward(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        scaling: float,
        window: int,
        softcap: float,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        self.write(layer, key, value)
        return self.attend(layer, query, value.dtype, scaling=scaling, window=window, softcap=softcap, sinks=sinks)

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        k_cache, v_cache = self._cache[layer]
        k_cache[self._slots] = key.to(k_cache.dtype)
        if layer not in self._in_keys:
            v_cache[self._slots] = value.to(v_cache.dtype)

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        dtype: torch.dtype,
        *,
        scaling: float,
        window: int,
        softcap: float,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        k_cache, v_cache = self._cache[layer]
        out = query.new_empty(query.shape[0], query.shape[1], v_cache.shape[2], dtype=dtype)
        group = query.shape[1] // k_cache.shape[1]
        for first, last, slots, *key_ends in self._sequences:
            k = k_cache[slots].float().repeat_interleave(group, 1)
            v = v_cache[slots].float().repeat_interleave(group, 1)
            scores = torch.einsum("qhd,khd->hqk", query[first:last].float(), k) * scaling
            if softcap:
                scores = torch.tanh(scores / softcap) * softcap
            num_keys = len(slots)
            position = torch.arange(num_keys - (last - first), num_keys, device=self._device)[:, None]
            column = torch.arange(num_keys, device=self._device)[None]
            hidden = column >= key_ends[window > 0][:, None]
            if window:
                hidden |= column <= position - window
            if chunk := self._chunks.get(layer):
                hidden |= column < position // chunk * chunk
            scores = scores.masked_fill(hidden, float("-inf"))
            if sinks is not None:
                scores = torch.cat([scores, sinks.float().view(-1, 1, 1).expand(-1, last - first, 1)], -1)
            weights = scores.softmax(-1)[..., :num_keys]
            out[first:last] = torch.einsum("hqk,khd->qhd", weights, v)
        return out
