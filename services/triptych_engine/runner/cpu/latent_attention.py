"""Attention to latents on CPUs: with absorbed queries, or with latents that are expanded for the step, as for chunks of prompts.

The keys and values of a sequence are expanded for some heads at a time, into a small cache of their own, and attended to as those
of other models.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from triptych_engine.runner.attention.latent import LatentHeads, attend_to_latents
from triptych_engine.runner.attention.paged import SCALE_BYTES, AttentionMetadata, LayerShape
from triptych_engine.runner.cpu.attention import CpuAttention
from triptych_engine.runner.cpu.attention_step import StepArgs
from triptych_engine.runner.cpu.kernels import CpuKernels
from triptych_engine.runner.cpu.linear.heads import pack_heads
from triptych_engine.runner.fusion.latent import keep_latents
from triptych_engine.runner.verdicts import Verdicts

#: What a sequence's expanded keys and values may take, in bytes, where there are several heads.
_MOST_BYTES = 64 << 20


@dataclass(frozen=True)
class _Expanded:
    """A sequence whose latents are expanded. Its keys are those of earlier steps and then those of its tokens in this step."""

    tokens: slice
    blocks: torch.Tensor  # [ceil(number of keys / block_size)] int64
    earlier: AttentionMetadata
    own: AttentionMetadata


@dataclass(frozen=True)
class _Split:
    """The sequences of a step. absorbed: tokens of those whose queries are absorbed, and the step that has only them."""

    expanded: list[_Expanded]
    absorbed: tuple[torch.Tensor, StepArgs] | None


class LatentAttention(CpuAttention):
    """Of models of which layers keep latents. See AttendsToLatents."""

    def __init__(self, kernels: CpuKernels) -> None:
        super().__init__(kernels)
        self._scratch = CpuAttention(kernels)  # has expanded keys and values
        self._room: tuple[LayerShape, int, torch.dtype] | None = None  # of it
        self._last_split: tuple[StepArgs, _Split] | None = None

    def free(self) -> None:
        super().free()
        self._scratch.free()
        self._room = None

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
        options: dict[str, Any] = {"scaling": scaling, "window": window, "softcap": softcap}
        split = self._split(heads, key.shape[2] - value.shape[2])
        if not split.expanded:
            return attend_to_latents(self, layer, query, key, value, heads, **options)
        self.write(layer, key, value)
        out = value.new_empty(*query.shape[:2], heads.v_head_dim)
        for sequence in split.expanded:
            latents = self._latents(layer, sequence, key[sequence.tokens], value.dtype)
            self._attend(sequence, query[sequence.tokens], latents, heads, out[sequence.tokens], options)
        if split.absorbed is not None:
            tokens, step = split.absorbed
            whole, self._step = self._step, step
            out[tokens] = attend_to_latents(self, layer, query[tokens], key[tokens], value[tokens], heads, **options)
            self._step = whole
        return out

    def _split(self, heads: LatentHeads, rotated: int) -> _Split:
        """How the sequences of the step are computed: in the same way in all layers."""
        if self._last_split is None or self._last_split[0] is not self._step:
            metadata = self._step.metadata
            is_long = heads.is_expanding_faster(np.diff(metadata.query_start_loc), metadata.seq_lens, rotated)
            self._last_split = self._step, self._split_by(metadata, is_long)
        return self._last_split[1]

    def _split_by(self, metadata: AttentionMetadata, is_long: np.ndarray) -> _Split:
        block_size, start = self._block_size, metadata.query_start_loc
        expanded = []
        for index in np.flatnonzero(is_long).tolist():
            tokens, num_keys = slice(int(start[index]), int(start[index + 1])), int(metadata.seq_lens[index])
            num_earlier, num_blocks = num_keys - (tokens.stop - tokens.start), -(-num_keys // block_size)
            blocks = torch.from_numpy(metadata.block_table[index, :num_blocks].astype(np.int64))
            earlier = _in_order(np.arange(num_earlier), None, num_blocks)
            end = None if metadata.key_end is None else metadata.key_end[tokens]
            expanded.append(_Expanded(tokens, blocks, earlier, _in_order(np.arange(num_earlier, num_keys), end, num_blocks)))
        if not expanded or is_long.all():
            return _Split(expanded, None)
        others = np.flatnonzero(np.repeat(~is_long, np.diff(start)))
        return _Split(expanded, (torch.from_numpy(others), self._step_of(_some(metadata, ~is_long, others))))

    def _latents(self, layer: int, sequence: _Expanded, own: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """[num_keys, head_dim] of the dtype: those of earlier steps from the cache, and the step's own."""
        own = own[:, 0].to(dtype)
        num_earlier, size = sequence.earlier.num_tokens, self._block_size
        if not num_earlier:
            return own
        blocks = self._cache[layer][0][sequence.blocks[: -(-num_earlier // size)], 0]  # [blocks, head_dim and scale, block_size]
        return torch.cat([_numbers(blocks, own.shape[1])[:num_earlier].to(dtype), own])

    def _attend(
        self,
        sequence: _Expanded,
        query: torch.Tensor,
        latents: torch.Tensor,
        heads: LatentHeads,
        out: torch.Tensor,
        options: dict[str, Any],
    ) -> None:
        scratch, dtype, num_heads, num_own = self._scratch, out.dtype, query.shape[1], len(query)
        query = query.to(torch.float32)
        head_bytes = len(latents) * 4 * (query.shape[2] + heads.v_head_dim)
        some = max(
            count
            for count in range(1, num_heads + 1)
            if num_heads % count == 0 and (count == 1 or count * head_bytes <= _MOST_BYTES)
        )
        self._make_room(LayerShape(some, query.shape[2], heads.v_head_dim), len(sequence.blocks))
        for first in range(0, num_heads, some):
            keys, values = heads.expand(latents, first, some)
            values = values.to(dtype)
            if num_own < len(latents):
                scratch.begin(sequence.earlier)
                scratch.write(0, keys[:-num_own], values[:-num_own])
            scratch.begin(sequence.own)
            part = slice(first, first + some)
            out[:, part] = scratch.forward(0, query[:, part], keys[-num_own:], values[-num_own:], sinks=None, **options)

    def _make_room(self, shape: LayerShape, num_blocks: int) -> None:
        dtype = torch.float32 if self._dtype == torch.int8 else self._dtype
        if self._room is None or self._room[0] != shape or self._room[1] < num_blocks or self._room[2] != dtype:
            self._scratch.allocate({0: shape}, num_blocks, self._block_size, dtype)
            self._room = shape, num_blocks, dtype


def latent_keeper(kernels: CpuKernels | None, *, batch_invariant: bool) -> Callable[[PreTrainedModel, torch.Tensor, Verdicts], int]:
    """What lets the attentions of a model keep latents, as `load_model` calls it. Arguments as of `pack_heads`."""
    pack = partial(pack_heads, kernels=kernels, batch_invariant=batch_invariant)
    return partial(keep_latents, pack=pack, expands=not batch_invariant)


def _in_order(positions: np.ndarray, key_end: np.ndarray | None, num_blocks: int) -> AttentionMetadata:
    """A sequence whose blocks are in order, from the first one on."""
    return AttentionMetadata(
        query_start_loc=np.array([0, len(positions)], np.int32),
        seq_lens=np.array([positions[-1] + 1 if len(positions) else 0], np.int32),
        block_table=np.arange(num_blocks, dtype=np.int32)[None],
        slots=positions.astype(np.int64),
        positions=positions.astype(np.int32),
        key_end=key_end,
    )


def _some(metadata: AttentionMetadata, sequences: np.ndarray, tokens: np.ndarray) -> AttentionMetadata:
    """The step with some of its sequences only, given as [num_seqs] bool, and their tokens."""
    lengths = np.diff(metadata.query_start_loc)[sequences]
    return AttentionMetadata(
        query_start_loc=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
        seq_lens=metadata.seq_lens[sequences],
        block_table=np.ascontiguousarray(metadata.block_table[sequences]),
        slots=metadata.slots[tokens],
        positions=metadata.positions[tokens],
        key_end=None if metadata.key_end is None else metadata.key_end[tokens],
    )


def _numbers(blocks: torch.Tensor, head_dim: int) -> torch.Tensor:
    """[num_blocks * block_size, head_dim] of keys in the layout of the cache (csrc/attention/kv_cache.h)."""
    num_blocks, size, block_size = blocks.shape
    per_word, scale = 4 // blocks.itemsize, SCALE_BYTES if blocks.dtype == torch.int8 else 0
    words = blocks[:, : size - scale].reshape(num_blocks, -1, block_size, per_word)
    numbers = words.permute(0, 2, 1, 3).reshape(num_blocks * block_size, -1)[:, :head_dim]
    if not scale:
        return numbers
    scales = blocks[:, size - scale :].reshape(num_blocks, -1).contiguous().view(torch.float32)
    return numbers.float() * scales.reshape(-1, 1)
