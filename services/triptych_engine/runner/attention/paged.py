"""Attention over the paged KV cache, behind one interface for all devices.

transformers' models call `paged_attention` (registered under ATTENTION_NAME) instead of their own attention. It finds the backend
of the step in a context variable, because some architectures do not pass custom keyword arguments to their layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from transformers import AttentionInterface

from triptych_engine.runner.attention.latent import attend_to_latents, latent_heads
from triptych_engine.runner.attention.selection import NO_MASK, NoMask, Selection, attend_to_selected

ATTENTION_NAME = "triptych_paged"
#: Of a head's key, and of its value, in a KV cache in int8.
SCALE_BYTES = 4


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Shape of the keys and values that one attention layer stores per token."""

    num_kv_heads: int
    head_dim: int
    v_head_dim: int
    #: Number of keys that a token attends to at most, including its own; 0 for all.
    window: int = 0
    #: Whether a value is the first v_head_dim numbers of its key, and only keys are stored (latent.py).
    values_in_keys: bool = False
    #: Tokens attend within chunks of so many tokens, counted from the beginning of the sequence; 0 for no chunks.
    chunk: int = 0

    def bytes_per_token(self, dtype: torch.dtype) -> int:
        """What keys and values of this dtype take, in bytes."""
        per_word = max(1, 4 // dtype.itemsize)  # the CPU's KV cache rounds an odd head_dim up
        sizes = [-(-self.head_dim // per_word) * per_word] + ([] if self.values_in_keys else [self.v_head_dim])
        scale = SCALE_BYTES if dtype == torch.int8 else 0
        return self.num_kv_heads * sum(size * dtype.itemsize + scale for size in sizes)


@dataclass(slots=True)
class AttentionMetadata:
    """Positions and cache slots of the tokens of one ragged batch. The arrays are on the host; backends copy what they need."""

    query_start_loc: np.ndarray  # [num_seqs + 1] int32, first token of each sequence in the flat batch
    seq_lens: np.ndarray  # [num_seqs] int32, number of keys of each sequence, including those of this step
    block_table: np.ndarray  # [num_seqs, max_blocks_per_seq] int32
    slots: np.ndarray  # [num_tokens] int64, cache slot of each token: block * block_size + offset
    positions: np.ndarray  # [num_tokens] int32
    #: [num_tokens] int32, one past the last key that each token attends to; None if that is its own key for all tokens.
    key_end: np.ndarray | None = None
    #: Whether that holds for layers with a window only, and the tokens of other layers attend to no later keys.
    ends_in_windows: bool = False
    #: Block table and slots of layers with a window, if these have blocks of their own. Entries behind the window mean nothing.
    window_block_table: np.ndarray | None = None
    window_slots: np.ndarray | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.slots)

    @property
    def num_seqs(self) -> int:
        return len(self.seq_lens)

    def key_ends(self, *, has_window: bool) -> np.ndarray:
        """[num_tokens] int32, one past the last key that each token attends to in a layer."""
        if self.key_end is None or (self.ends_in_windows and not has_window):
            return self.positions + np.int32(1)
        return self.key_end

    def key_slots(self, sequence: int, block_size: int) -> np.ndarray:
        """[num_keys] int64: the cache slots of all keys of a sequence, in order."""
        num_keys = int(self.seq_lens[sequence])
        blocks = self.block_table[sequence, : -(-num_keys // block_size)].astype(np.int64)
        return (blocks[:, None] * block_size + np.arange(block_size)).reshape(-1)[:num_keys]

    def some(self, wanted: np.ndarray) -> AttentionMetadata:
        """The step with only those tokens, [num_tokens] bool, that are the first ones of each sequence. It has no spans."""
        rows = np.repeat(np.arange(self.num_seqs), np.diff(self.query_start_loc))[wanted]
        sequences, lengths = np.unique(rows, return_counts=True)
        ends = np.cumsum(lengths)
        return AttentionMetadata(
            query_start_loc=np.concatenate([[0], ends]).astype(np.int32),
            seq_lens=self.positions[wanted][ends - 1] + np.int32(1),
            block_table=self.block_table[sequences],
            slots=self.slots[wanted],
            positions=self.positions[wanted],
        )

    def in_chunks(self, chunk: int, block_size: int) -> AttentionMetadata:
        """The step as layers see it whose tokens attend within chunks: each chunk of a sequence is a sequence of its own.

        chunk: a multiple of the block size, in tokens.
        """
        if self.key_end is not None:
            raise RuntimeError("spans do not go together with attention within chunks")
        if (self.seq_lens <= chunk).all():
            return self
        begins = np.zeros(self.num_tokens, bool)
        begins[self.query_start_loc[:-1][np.diff(self.query_start_loc) > 0]] = True
        begins |= self.positions % chunk == 0
        starts = np.flatnonzero(begins).astype(np.int32)
        ends = np.append(starts[1:], np.int32(self.num_tokens))
        rows = np.searchsorted(self.query_start_loc, starts, side="right") - 1
        # Columns behind a sequence's last block are not read.
        blocks = np.arange(chunk // block_size) + (self.positions[starts] // chunk * (chunk // block_size))[:, None]
        blocks = np.minimum(blocks, self.block_table.shape[1] - 1)
        window_table = self.window_block_table
        return AttentionMetadata(
            query_start_loc=np.append(starts, np.int32(self.num_tokens)),
            seq_lens=(self.positions[ends - 1] % chunk + 1).astype(np.int32),
            block_table=self.block_table[rows[:, None], blocks],
            slots=self.slots,
            positions=self.positions % np.int32(chunk),
            window_block_table=None if window_table is None else window_table[rows[:, None], blocks],
            window_slots=self.window_slots,
        )


class AttentionBackend(Protocol):
    """Owns the KV cache and attends over it. One per runner; `begin` once per step, `forward` once per layer."""

    name: str

    def allocate(self, layers: dict[int, LayerShape], num_blocks: int, block_size: int, dtype: torch.dtype) -> None:
        """Allocate the cache. Raises ValueError if a layer's shape is not supported."""
        ...

    def prefault(self) -> None:
        """Touch the cache's memory in the background before requests use it, where the first use of a page is slow."""
        ...

    def free(self) -> None:
        """Free the memory of the cache."""
        ...

    def blocks(self) -> list[torch.Tensor]:
        """The memory of the cache, layer by layer: [num_blocks, ...], of which each block is contiguous. Empty if it is freed."""
        ...

    def begin(self, metadata: AttentionMetadata) -> None:
        """Prepare a step."""
        ...

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
        """Write the step's keys and values into the cache and attend.

        Args:
            layer: index of the layer, as in the `layers` of `allocate`.
            query: [num_tokens, num_q_heads, head_dim], any strides; may be wider (fp32) than the values.
            key: [num_tokens, num_kv_heads, head_dim], of the query's dtype. value: [num_tokens, num_kv_heads, v_head_dim].
            window: number of keys that a token attends to, including its own; 0 for all.
            softcap: bound to which tanh limits the scores; 0 for none.
            sinks: [num_q_heads] logits that take probability but contribute no value; None for none.

        Returns:
            [num_tokens, num_q_heads, v_head_dim], dense, of the values' dtype.
        """
        ...

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """The first half of `forward`: write the step's keys and values into the cache."""
        ...

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
        """The second half of `forward`: [num_tokens, num_q_heads, v_head_dim] of this dtype; keys and values are in the cache."""
        ...


_backend: ContextVar[AttentionBackend | None] = ContextVar("attention_backend", default=None)


@contextmanager
def attending(backend: AttentionBackend) -> Iterator[None]:
    """Within this context, forward passes use this backend."""
    token = _backend.set(backend)
    try:
        yield
    finally:
        _backend.reset(token)


def backend_of_step() -> AttentionBackend | None:
    """The backend of the step; None outside of one."""
    return _backend.get()


def current_backend() -> AttentionBackend:
    """The backend of the step. Raises RuntimeError outside of one."""
    backend = _backend.get()
    if backend is None:
        raise RuntimeError("paged attention was called outside of a step")
    return backend


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | NoMask | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention function: query [1, Hq, T, D], key and value [1, Hkv, T, D] -> [1, T, Hq, Dv]."""
    if attention_mask is not None and attention_mask is not NO_MASK:
        raise RuntimeError("the model built an attention mask; the paged cache has none")
    backend, layer, heads = current_backend(), int(module.layer_idx), latent_heads(module)  # type: ignore[arg-type]
    queries, keys, values = (states[0].transpose(0, 1) for states in (query, key, value))
    options: dict[str, Any] = {
        "scaling": query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        "window": int(sliding_window or 0),
        "softcap": float(softcap or 0.0),
    }

    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        if heads is None:
            sinks = kwargs.get("s_aux", getattr(module, "sinks", None))
            return backend.forward(layer, query, key, value, sinks=sinks, **options)
        if hasattr(backend, "forward_latents"):
            return backend.forward_latents(layer, query, key, value, heads, **options)
        return attend_to_latents(backend, layer, query, key, value, heads, **options)

    if isinstance(selection := kwargs.get("indices"), Selection):
        return attend_to_selected(backend, layer, queries, keys, values, heads, selection, attend, **options)[None], None
    return attend(queries, keys, values)[None], None


# No mask function of this name is registered, so transformers builds no mask.
AttentionInterface.register(ATTENTION_NAME, paged_attention)
