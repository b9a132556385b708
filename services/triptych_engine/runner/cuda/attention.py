"""Paged attention on GPUs."""

from __future__ import annotations

import numpy as np
import torch

from triptych_engine.runner.attention.paged import AttentionMetadata, LayerShape
from triptych_engine.runner.cuda import paged_kernels
from triptych_engine.runner.cuda.paged_kernels import Layer
from triptych_engine.runner.cuda.step import DecodeTokens, PromptTiles, StepTensors
from triptych_engine.runner.transfer import HostToDevice


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
        self._metadata: AttentionMetadata | None = None
        self._tiles: dict[int, PromptTiles] = {}  # by tokens per tile
        self._scratch_slot = 0

    def allocate(self, layers: dict[int, LayerShape], num_blocks: int, block_size: int, dtype: torch.dtype) -> None:
        if not dtype.is_floating_point:
            raise ValueError(f"attention on GPUs keeps no keys and values in {dtype}")
        for shape in layers.values():
            if (reason := paged_kernels.refusal(shape)) is not None:
                raise ValueError(f"attention on GPUs does not take {reason}")
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
        self._metadata, self._tiles = metadata, {}
        self._is_decoding = is_decoding(metadata)
        rows = np.flatnonzero(self._is_decoding).astype(np.int32)
        blocks_per_row = np.array([metadata.block_table.shape[1]], np.int32)
        arrays = [metadata.slots, metadata.seq_lens, metadata.block_table, blocks_per_row, rows, metadata.query_start_loc[rows]]
        if len(rows) < metadata.num_seqs:
            arrays += [metadata.query_start_loc, metadata.positions, metadata.key_ends(has_window=True)]
            if metadata.ends_in_windows:
                arrays.append(metadata.key_ends(has_window=False))
        slots, seq_lens, table, per_row, sequences, tokens, *of_prompts = self._transfer(*arrays)
        decode = DecodeTokens(sequences, tokens, int(metadata.seq_lens[rows].max())) if len(rows) else None
        self._step = StepTensors(slots, seq_lens, table, per_row, decode, *of_prompts)

    def begin_on(self, step: StepTensors) -> None:
        """Prepare a step whose metadata is already on the device, in which all sequences decode."""
        self._metadata, self._step = None, step

    def place(self, layer: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The layer's keys and values, and the slots of the step's tokens, for a kernel that writes them by itself."""
        return *self._cache[layer], self._step.slots

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
        paged_kernels.write(_dense_heads(key), _dense_heads(value), self._cache[layer], self._step.slots)

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
        shape, step, query = self._layers[layer], self._step.of_layer(has_window=window > 0), _dense_heads(query)
        k_cache = self._cache[layer][0]
        called = Layer(
            query.device, k_cache.dtype, query.shape[1], shape, self._block_size, scaling, window, softcap, sinks
        )  # fmt: skip
        out = torch.empty(query.shape[0], query.shape[1], shape.v_head_dim, dtype=dtype, device=query.device)
        if step.decode is not None:
            paged_kernels.decode(called, query, self._cache[layer], out, step, step.decode)
        if self._metadata is not None and step.query_start_loc is not None:
            tiles = self._tiles_of(self._metadata, called.tile_tokens)
            paged_kernels.prompts(called, query, self._cache[layer], out, step, tiles)
        return out

    def _tiles_of(self, metadata: AttentionMetadata, size: int) -> PromptTiles:
        """The tiles of the step's prompts, with so many tokens each. Layers with as many heads share them."""
        tiles = self._tiles.get(size)
        if tiles is None:
            tiles = PromptTiles(*self._transfer(*prompt_tiles(metadata, ~self._is_decoding, size)))
            self._tiles[size] = tiles
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
