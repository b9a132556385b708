"""Paged attention on GPUs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from triptych_engine.runner.attention.paged import AttentionMetadata, LayerShape
from triptych_engine.runner.cuda import paged_kernels
from triptych_engine.runner.cuda.paged_kernels import Layer
from triptych_engine.runner.cuda.step import DecodeTokens, PromptTiles, StepTensors
from triptych_engine.runner.transfer import HostToDevice


@dataclass
class _Prepared:
    """A step as some layers see it.

    Attributes:
        metadata: None if it is only on the device.
        is_decoding: [num_seqs] bool, of `is_decoding`.
        tiles: of prompts, by tokens per tile.
    """

    metadata: AttentionMetadata | None
    tensors: StepTensors
    is_decoding: np.ndarray
    tiles: dict[int, PromptTiles]


class CudaAttention:
    """Keys and values [(num_blocks + 1) * block_size, num_kv_heads, head_dim]; the last block is scratch.

    Sequences that compute one token are attended to by a kernel of their own, which splits their keys among the multiprocessors. In
    one call with a prompt, a few programs would each read a long context while the prompt's are already done.

    Args:
        device: a GPU, or a CPU under Triton's interpreter.
    """

    name = "cuda"

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._transfer = HostToDevice(device)
        self._cache: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._layers: dict[int, LayerShape] = {}
        self._chunked: dict[int, _Prepared] = {}  # chunk -> the step as layers with such chunks see it
        self._scratch_slot = 0

    def allocate(self, layers: dict[int, LayerShape], num_blocks: int, block_size: int, dtype: torch.dtype) -> None:
        if not dtype.is_floating_point:
            raise ValueError(f"attention on GPUs keeps no keys and values in {dtype}")
        for shape in layers.values():
            if (reason := paged_kernels.refusal(shape)) is not None:
                raise ValueError(f"attention on GPUs does not take {reason}")
            if shape.chunk % block_size:
                raise ValueError(f"attention on GPUs needs chunks that are multiples of the block size {block_size}")
        self._layers, self._block_size = layers, block_size
        self._scratch_slot = num_blocks * block_size
        slots = self._scratch_slot + block_size
        self._cache = {
            index: (
                torch.empty(slots, shape.num_kv_heads, shape.head_dim, dtype=dtype, device=self._device),
                torch.empty(slots, shape.num_kv_heads, shape.v_head_dim, dtype=dtype, device=self._device),
            )
            for index, shape in layers.items()
        }

    def prefault(self) -> None:
        pass

    def free(self) -> None:
        self._cache = {}

    def blocks(self) -> list[torch.Tensor]:
        parts = [part[: self._scratch_slot] for pair in self._cache.values() for part in pair]
        return [part.unflatten(0, (-1, self._block_size)) for part in parts]

    @property
    def scratch_slot(self) -> int:
        """First slot of the scratch block, which belongs to no sequence. Padding rows write there."""
        return self._scratch_slot

    def begin(self, metadata: AttentionMetadata) -> None:
        self._step, self._chunked = self._prepare(metadata), {}

    def _prepare(self, metadata: AttentionMetadata) -> _Prepared:
        single = is_decoding(metadata)
        rows = np.flatnonzero(single).astype(np.int32)
        blocks_per_row = np.array([metadata.block_table.shape[1]], np.int32)
        arrays = [metadata.slots, metadata.seq_lens, metadata.block_table, blocks_per_row, rows, metadata.query_start_loc[rows]]
        if len(rows) < metadata.num_seqs:
            arrays += [metadata.query_start_loc, metadata.positions, metadata.key_ends(has_window=True)]
            if metadata.ends_in_windows:
                arrays.append(metadata.key_ends(has_window=False))
        slots, seq_lens, table, per_row, sequences, tokens, *of_prompts = self._transfer(*arrays)
        decode = DecodeTokens(sequences, tokens, int(metadata.seq_lens[rows].max())) if len(rows) else None
        return _Prepared(metadata, StepTensors(slots, seq_lens, table, per_row, decode, *of_prompts), single, {})

    def _step_in(self, chunk: int) -> _Prepared:
        if chunk and chunk not in self._chunked:
            if self._step.metadata is None:
                raise RuntimeError("a step whose metadata is only on the device is not divided into chunks")
            metadata = self._step.metadata.in_chunks(chunk, self._block_size)
            self._chunked[chunk] = self._step if metadata is self._step.metadata else self._prepare(metadata)
        return self._chunked[chunk] if chunk else self._step

    def begin_on(self, step: StepTensors) -> None:
        """Prepare a step whose metadata is already on the device, in which all sequences decode."""
        self._step, self._chunked = _Prepared(None, step, np.ones(0, bool), {}), {}

    def place(self, layer: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The layer's keys and values, and the slots of the step's tokens, for a kernel that writes them by itself."""
        return *self._cache[layer], self._step.tensors.slots

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
        paged_kernels.write(_dense_heads(key), _dense_heads(value), self._cache[layer], self._step.tensors.slots)

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
        shape, query = self._layers[layer], _dense_heads(query)
        prepared = self._step_in(shape.chunk)
        step = prepared.tensors.of_layer(has_window=window > 0)
        k_cache = self._cache[layer][0]
        called = Layer(
            query.device, k_cache.dtype, query.shape[1], shape, self._block_size, scaling, window, softcap, sinks
        )  # fmt: skip
        out = torch.empty(query.shape[0], query.shape[1], shape.v_head_dim, dtype=dtype, device=query.device)
        if step.decode is not None:
            paged_kernels.decode(called, query, self._cache[layer], out, step, step.decode)
        if prepared.metadata is not None and step.query_start_loc is not None:
            tiles = self._tiles_of(prepared, prepared.metadata, called.tile_tokens)
            paged_kernels.prompts(called, query, self._cache[layer], out, step, tiles)
        return out

    def _tiles_of(self, prepared: _Prepared, metadata: AttentionMetadata, size: int) -> PromptTiles:
        """The tiles of the step's prompts, with so many tokens each. Layers with as many heads share them."""
        tiles = prepared.tiles.get(size)
        if tiles is None:
            tiles = PromptTiles(*self._transfer(*prompt_tiles(metadata, ~prepared.is_decoding, size)))
            prepared.tiles[size] = tiles
        return tiles


def is_decoding(metadata: AttentionMetadata) -> np.ndarray:
    """[num_seqs] bool, which sequences compute one token that attends to all their keys."""
    single = np.diff(metadata.query_start_loc) == 1
    if metadata.key_end is not None:
        single &= metadata.key_end[metadata.query_start_loc[1:] - 1] == metadata.seq_lens
    return single


def prompt_tiles(metadata: AttentionMetadata, is_prompt: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Divide the tokens of sequences into tiles of up to `size` tokens: for each its sequence and its first token, int32.

    Tiles with the most keys come first, so that no long one begins when all others have ended.
    """
    starts = metadata.query_start_loc
    rows = np.flatnonzero(is_prompt)
    counts = -(-(starts[rows + 1] - starts[rows]) // size)
    sequences = np.repeat(rows, counts).astype(np.int32)
    within = np.arange(len(sequences)) - np.repeat(np.cumsum(counts) - counts, counts)
    tokens = (starts[sequences] + within * size).astype(np.int32)
    order = np.argsort(-metadata.positions[tokens], kind="stable")
    return sequences[order], tokens[order]


def _dense_heads(states: torch.Tensor) -> torch.Tensor:
    return states if states.stride(-1) == 1 else states.contiguous()
