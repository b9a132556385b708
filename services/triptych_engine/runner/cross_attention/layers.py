"""The cross-attention of a decoder, between transformers' layers, which call it, and the keys and values of the encoder's states.

The keys and values of a sequence do not change while it is decoded. They are computed once for all layers, and kept in a slot: some
pages of a KV cache of their own, to which the device's attention backend attends. All tokens see all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from triptych_engine.runner.attention.paged import AttentionBackend, AttentionMetadata, LayerShape

#: Of the states that stand for an encoder's in checks.
_PROBE_SEED = 0


class CrossLayers:
    """Owns the keys and values of the encoder's states. Without a step, a forward pass attends to the states of the probe.

    Args:
        probe: [num_states, hidden_size] what stands for an encoder's states in checks and in the warm-up.

    Attributes:
        layers: layer -> its attention.
        backend: attends to the slots; set once the device's is chosen.
        num_slots: of the memory for keys and values; 0 while there is none.
    """

    backend: AttentionBackend

    def __init__(self, probe: torch.Tensor) -> None:
        self.probe = probe
        self.layers: dict[int, CrossAttention] = {}
        self.num_slots = 0
        self._block_size = 0
        self._is_computing = self._has_probe = False

    @property
    def num_states(self) -> int:
        """Of each sequence."""
        return len(self.probe)

    @property
    def shapes(self) -> dict[int, LayerShape]:
        """Layer -> what it keeps of each state."""
        return {index: layer.shape for index, layer in self.layers.items()}

    def slot_bytes(self, dtype: torch.dtype, block_size: int) -> int:
        """What a slot takes, in bytes."""
        num_tokens = self._blocks_per_slot(block_size) * block_size
        return num_tokens * sum(shape.bytes_per_token(dtype) for shape in self.shapes.values())

    def _blocks_per_slot(self, block_size: int) -> int:
        return -(-self.num_states // block_size)

    def allocate(self, num_slots: int, block_size: int, dtype: torch.dtype) -> None:
        """Allocate the memory of the slots."""
        self.num_slots, self._block_size, self._has_probe = num_slots, block_size, False
        self.backend.allocate(self.shapes, num_slots * self._blocks_per_slot(block_size), block_size, dtype)

    def free(self) -> None:
        """Free it."""
        self.num_slots, self._has_probe = 0, False
        self.backend.free()

    def fill(self, slot: int, states: torch.Tensor) -> None:
        """Compute the keys and values of an encoder's states. states: [num_states, hidden_size]."""
        self._has_probe = self._has_probe and slot != 0
        positions = np.arange(self.num_states)
        first = slot * self._blocks_per_slot(self._block_size) * self._block_size
        self.backend.begin(
            AttentionMetadata(
                query_start_loc=np.array([0, self.num_states], np.int32),
                seq_lens=np.array([self.num_states], np.int32),
                block_table=self._block_table([slot]),
                slots=first + positions,
                positions=positions.astype(np.int32),
            )
        )
        for index, layer in self.layers.items():
            self.backend.write(index, *layer.keys_and_values(states))

    def fill_probe(self) -> int:
        """A slot with the probe's states. No sequence may have one."""
        if not self._has_probe:
            self.fill(0, self.probe)
            self._has_probe = True
        return 0

    @contextmanager
    def computing(self, query_start_loc: np.ndarray, slots: list[int]) -> Iterator[None]:
        """Within this context, a forward pass computes this step.

        Args:
            query_start_loc: [num_seqs + 1] int32, the first token of each sequence in the flat batch.
            slots: of the sequences.
        """
        num_tokens = int(query_start_loc[-1])
        self.backend.begin(
            AttentionMetadata(
                query_start_loc=query_start_loc,
                seq_lens=np.full(len(slots), self.num_states, np.int32),
                block_table=self._block_table(slots),
                slots=np.zeros(num_tokens, np.int64),  # nothing is written
                positions=np.full(num_tokens, self.num_states - 1, np.int32),  # that of a token which sees all of them
            )
        )
        self._is_computing = True
        try:
            yield
        finally:
            self._is_computing = False

    def _block_table(self, slots: list[int]) -> np.ndarray:
        num_blocks = self._blocks_per_slot(self._block_size)
        return np.array(slots, np.int32)[:, None] * num_blocks + np.arange(num_blocks, dtype=np.int32)

    def attend(self, layer: int, query: torch.Tensor) -> torch.Tensor:
        """[num_tokens, num_heads, head_dim] for scaled queries of the same shape."""
        if self._is_computing:
            return self.backend.attend(layer, query, query.dtype, scaling=1.0, window=0, softcap=0.0, sinks=None)
        keys, values = self.layers[layer].keys_and_values(self.probe)
        query, keys, values = (states.transpose(0, 1) for states in (query, keys, values))
        return functional.scaled_dot_product_attention(query, keys, values, scale=1.0).transpose(0, 1)


class CrossAttention(nn.Module):
    """In the place of transformers' module, whose projections it takes over, under other names: keys and values have another input
    than queries.

    Args:
        original: a WhisperAttention, with an index of its layer.
        layers: what it is part of.
    """

    def __init__(self, original: Any, layers: CrossLayers) -> None:
        super().__init__()
        self.query, self.keys, self.values, self.output = original.q_proj, original.k_proj, original.v_proj, original.out_proj
        self.shape = LayerShape(original.num_heads, original.head_dim, original.head_dim)
        self._scaling, self._layer, self._layers = original.scaling, int(original.layer_idx), layers

    def forward(self, hidden_states: torch.Tensor, **kwargs: Any) -> tuple[torch.Tensor, None]:
        """hidden_states: [1, num_tokens, hidden_size]. The encoder's states, which the layer passes too, are those of the step."""
        query = self._heads(self.query(hidden_states[0]) * self._scaling)
        return self.output(self._layers.attend(self._layer, query).flatten(1)[None]), None

    def keys_and_values(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[num_states, num_heads, head_dim] of states [num_states, hidden_size]."""
        return self._heads(self.keys(states)), self._heads(self.values(states))

    def _heads(self, states: torch.Tensor) -> torch.Tensor:
        return states.unflatten(-1, (self.shape.num_kv_heads, self.shape.head_dim))


def probe_states(config: Any, like: torch.Tensor) -> torch.Tensor:
    """[num_states, hidden_size] what stands for an encoder's states in checks, with their mean and variance after its last norm."""
    generator = torch.Generator().manual_seed(_PROBE_SEED)
    return torch.randn(config.max_source_positions, config.d_model, generator=generator).to(like)


def attach_cross_attention(model: Any, probe: torch.Tensor) -> CrossLayers:
    """Let the decoder layers of a model (`WhisperForCausalLM`) use the layers that are returned. probe: see CrossLayers."""
    layers, decoder = CrossLayers(probe), model.model.decoder
    for index, layer in enumerate(decoder.layers):
        layer.encoder_attn = layers.layers[index] = CrossAttention(layer.encoder_attn, layers)

    def with_states(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        # Layers call their cross-attention only if they are given states.
        return args, {**kwargs, "encoder_hidden_states": probe[None]}

    decoder.register_forward_pre_hook(with_states, with_kwargs=True)
    return layers
