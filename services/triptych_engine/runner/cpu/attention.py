"""Paged attention on CPUs through the kernel in csrc/."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np
import torch

from triptych_engine.runner.attention.paged import SCALE_BYTES, AttentionMetadata, LayerShape
from triptych_engine.runner.cpu.huge_pages import HugePages, Prefault
from triptych_engine.runner.cpu.kernel_args import KernelArgs
from triptych_engine.runner.cpu.kernels import ATTENTION_TYPES, CpuKernels

_LANES = 16
_LINE_BYTES = 64  # a line of the processor's caches
_WORD_BYTES = 4  # keys are padded to a multiple of this
_MOST_DIMS_INT8 = 1024  # kMostDims of csrc/attention/kv_cache.h


class CpuAttention:
    """Keys [num_blocks, num_kv_heads, head_dim, block_size], values [num_blocks, num_kv_heads, block_size, v_head_dim]; fp32, bf16
    or int8. In bf16 and int8, the numbers of a block are stored in words, and head_dim is rounded up to whole ones. In int8, each
    head of a key and of a value has a scale: four numbers more. See csrc/attention/kv_cache.h."""

    name = "cpu"

    def __init__(self, kernels: CpuKernels) -> None:
        self._kernels = kernels
        self._cache: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._prefault: Prefault | None = None

    def allocate(
        self,
        layers: dict[int, LayerShape],
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        num_window_blocks: int = 0,
    ) -> None:
        """See AttentionBackend. num_window_blocks: of layers with a window, if these have blocks of their own; 0 if not."""
        if dtype not in (torch.float32, torch.bfloat16, torch.int8):
            raise ValueError(f"the CPU kernel works in float32, bfloat16 and int8, not {dtype}")
        if block_size % _LANES:
            raise ValueError(f"the CPU kernel needs a block size that is a multiple of {_LANES}, not {block_size}")
        if dtype == torch.int8 and any(max(shape.head_dim, shape.v_head_dim) > _MOST_DIMS_INT8 for shape in layers.values()):
            raise ValueError(f"the CPU kernel keeps heads of up to {_MOST_DIMS_INT8} dimensions in int8")
        odd = next((shape for shape in layers.values() if shape.v_head_dim % _LANES), None)
        if odd is not None:
            raise ValueError(f"the CPU kernel needs a value head dimension that is a multiple of {_LANES}, not {odd.v_head_dim}")
        self._stop_prefault()
        self._dtype = dtype
        self._block_size = block_size
        self._addresses: dict[tuple[int, ...], tuple[Any, Any]] = {}  # layers -> arrays, see layer_args
        self._windowed = {index for index, shape in layers.items() if shape.window} if num_window_blocks else set()
        counts = {index: num_window_blocks if index in self._windowed else num_blocks for index in layers}
        self._cache = _allocate(layers, counts, block_size, dtype)

    def prefault(self) -> None:
        self._stop_prefault()
        self._prefault = Prefault([part for pair in self._cache.values() for part in pair])

    def wait_for_prefault(self) -> None:
        """Wait until the memory of the cache is prefaulted, if `prefault` was called."""
        if self._prefault is not None:
            self._prefault.wait()

    def free(self) -> None:
        self._stop_prefault()
        self._cache, self._addresses = {}, {}

    def blocks(self) -> list[torch.Tensor]:
        return [part for pair in self._cache.values() for part in pair]

    def _stop_prefault(self) -> None:
        if self._prefault is not None:
            self._prefault.stop()
            self._prefault = None

    def begin(self, metadata: AttentionMetadata) -> None:
        self._metadata = metadata
        self._tiles: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
        self._key_end = metadata.positions + np.int32(1) if metadata.key_end is None else metadata.key_end
        window = (metadata.window_slots, metadata.window_block_table) if self._windowed else (None, None)
        self._window_tables = tuple(None if array is None else array.ctypes.data for array in window)
        self._tables = metadata.slots.ctypes.data, metadata.block_table.ctypes.data
        self._args = KernelArgs(
            window_slots=self._window_tables[0],
            window_block_table=self._window_tables[1],
            positions=metadata.positions.ctypes.data,
            key_end=self._key_end.ctypes.data,
            num_tokens=metadata.num_tokens,
            block_table_stride=metadata.block_table.strides[0] // 4,
            block_size=self._block_size,
        )

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
        num_tokens, num_q_heads, head_dim = query.shape
        num_kv_heads, v_head_dim = value.shape[1:]
        wanted = value.dtype
        query, key, value = _last_dim_dense(query), _last_dim_dense(key), _last_dim_dense(value)
        if key.dtype != query.dtype:
            query, key = query.to(wanted), key.to(wanted)
        if (query.dtype, wanted, self._dtype) not in ATTENTION_TYPES:
            query, key, value = query.float(), key.float(), value.float()
        out = value.new_empty(num_tokens, num_q_heads, v_head_dim)
        k_cache, v_cache = self._cache[layer]
        self._set_tiles(num_q_heads // num_kv_heads)
        args = self._args
        args.slots, args.block_table = self._window_tables if layer in self._windowed else self._tables
        args.q, args.k, args.v, args.out = query.data_ptr(), key.data_ptr(), value.data_ptr(), out.data_ptr()
        args.k_cache, args.v_cache = k_cache.data_ptr(), v_cache.data_ptr()
        args.q_stride_t, args.q_stride_h, _ = query.stride()
        args.k_stride_t, args.k_stride_h, _ = key.stride()
        args.v_stride_t, args.v_stride_h, _ = value.stride()
        args.num_q_heads, args.num_kv_heads, args.head_dim, args.v_head_dim = num_q_heads, num_kv_heads, head_dim, v_head_dim
        args.scaling, args.softcap, args.window = scaling, softcap, window
        sinks = None if sinks is None else sinks.float().contiguous()
        args.sinks = None if sinks is None else sinks.data_ptr()
        self._kernels.paged_attention(args, (query.dtype, value.dtype, self._dtype))
        return out.to(wanted)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the cache."""
        return self._dtype

    def layer_args(self, layers: tuple[int, ...], group: int) -> tuple[int, int, int]:
        """Arguments for a kernel that computes whole layers: the address of the step's KernelArgs, without the fields that depend
        on the layer, and the addresses of two arrays with the addresses of the layers' keys and values.

        Args:
            group: query heads per key head.
        """
        if layers not in self._addresses:
            caches = zip(*(self._cache[layer] for layer in layers), strict=True)
            keys, values = ((ctypes.c_void_p * len(layers))(*(cache.data_ptr() for cache in part)) for part in caches)
            self._addresses[layers] = keys, values
        keys, values = self._addresses[layers]
        self._args.slots, self._args.block_table = self._tables  # the kernel takes the others where a layer has a window
        self._set_tiles(group)
        return ctypes.addressof(self._args), ctypes.addressof(keys), ctypes.addressof(values)

    def _set_tiles(self, group: int) -> None:
        args = self._args
        tile_seq, tile_start, tile_len = self._tiles_for(group)
        args.tile_seq, args.tile_start, args.tile_len = tile_seq.ctypes.data, tile_start.ctypes.data, tile_len.ctypes.data
        args.num_tiles = len(tile_seq)

    def _tiles_for(self, group: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Cut each sequence's tokens into tiles of at most row_tile / group: (sequence, first token, tokens) of each, int32."""
        if group not in self._tiles:
            start = self._metadata.query_start_loc
            lengths = np.diff(start)
            if (lengths == 1).all():  # most steps
                every = np.arange(len(lengths), dtype=np.int32)
                self._tiles[group] = every, every, lengths
                return self._tiles[group]
            size = max(1, self._kernels.row_tile // group)
            counts = -(-lengths // size)
            seq = np.repeat(np.arange(len(lengths), dtype=np.int32), counts)
            within = np.arange(len(seq)) - np.repeat(np.cumsum(counts) - counts, counts)
            first = (start[seq] + within * size).astype(np.int32)
            self._tiles[group] = (seq, first, np.minimum(size, start[seq + 1] - first).astype(np.int32))
        return self._tiles[group]


def _last_dim_dense(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _allocate(
    layers: dict[int, LayerShape], num_blocks: dict[int, int], block_size: int, dtype: torch.dtype
) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
    """Layer -> keys, values. num_blocks: of each layer. Not zeroed: pages that were never touched take no memory.

    The memory of each layer is contiguous. If instead the same block of all layers were contiguous, memory would be used in smaller
    portions, but the attention of each layer would touch more pages than the TLB holds: with 8 x 4,000 tokens, that took a tenth
    longer.
    """
    line, per_word = _LINE_BYTES // dtype.itemsize, _WORD_BYTES // dtype.itemsize
    scale = SCALE_BYTES if dtype == torch.int8 else 0
    shapes = {
        index: (
            (num_blocks[index], shape.num_kv_heads, -(-shape.head_dim // per_word) * per_word + scale, block_size),
            (num_blocks[index], shape.num_kv_heads, block_size, shape.v_head_dim + scale),
        )
        for index, shape in layers.items()
    }
    sizes = [-(-math.prod(shape) // line) * line for pair in shapes.values() for shape in pair]
    parts = iter(HugePages().empty(sum(sizes), dtype=dtype).split(sizes))

    def part(shape: tuple[int, ...]) -> torch.Tensor:
        return next(parts)[: math.prod(shape)].view(shape)

    return {index: (part(keys), part(values)) for index, (keys, values) in shapes.items()}
