"""Paged attention on CPUs through the kernel in csrc/."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import torch

from triptych_engine.runner.attention.paged import SCALE_BYTES, AttentionMetadata, LayerShape
from triptych_engine.runner.cpu.attention_step import StepArgs
from triptych_engine.runner.cpu.huge_pages import HugePages, Prefault
from triptych_engine.runner.cpu.kernels import ATTENTION_TYPES, CpuKernels

_LANES = 16
_LINE_BYTES = 64  # a line of the processor's caches
_WORD_BYTES = 4  # keys are padded to a multiple of this
_MOST_DIMS_INT8 = 1024  # kMostDims of csrc/attention/kv_cache.h


class CpuAttention:
    """Keys [num_blocks, num_kv_heads, head_dim, block_size], values [num_blocks, num_kv_heads, block_size, v_head_dim]; fp32, bf16
    or int8. Where values are in the keys (LayerShape), there are only keys. In bf16 and int8, the numbers of a block are stored in
    words, and head_dim is rounded up to whole ones. In int8, each head of a key and of a value has a scale: four numbers more. See
    csrc/attention/kv_cache.h."""

    name = "cpu"

    def __init__(self, kernels: CpuKernels) -> None:
        self._kernels = kernels
        self._cache: dict[int, tuple[torch.Tensor, torch.Tensor | None]] = {}
        self._prefault: Prefault | None = None
        self._chunked: dict[int, StepArgs] = {}  # chunk -> the step as layers with such chunks see it

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
        if any(shape.values_in_keys and shape.num_kv_heads > 1 for shape in layers.values()):
            raise ValueError("the CPU kernel keeps values in keys for one key head only")
        odd = next((shape for shape in layers.values() if shape.v_head_dim % _LANES), None)
        if odd is not None:
            raise ValueError(f"the CPU kernel needs a value head dimension that is a multiple of {_LANES}, not {odd.v_head_dim}")
        if any(shape.chunk % block_size for shape in layers.values()):
            raise ValueError(f"the CPU kernel needs chunks of attention that are multiples of the block size {block_size}")
        self._stop_prefault()
        self._dtype, self._block_size, self._layers = dtype, block_size, layers
        self._addresses: dict[tuple[int, ...], tuple[Any, Any]] = {}  # layers -> arrays, see layer_args
        self._windowed = {index for index, shape in layers.items() if shape.window} if num_window_blocks else set()
        counts = {index: num_window_blocks if index in self._windowed else num_blocks for index in layers}
        self._cache = _allocate(layers, counts, block_size, dtype)

    def prefault(self) -> None:
        self._stop_prefault()
        self._prefault = Prefault(self.blocks())

    def wait_for_prefault(self) -> None:
        """Wait until the memory of the cache is prefaulted, if `prefault` was called."""
        if self._prefault is not None:
            self._prefault.wait()

    def free(self) -> None:
        self._stop_prefault()
        self._cache, self._addresses = {}, {}

    def blocks(self) -> list[torch.Tensor]:
        return [part for pair in self._cache.values() for part in pair if part is not None]

    def _stop_prefault(self) -> None:
        if self._prefault is not None:
            self._prefault.stop()
            self._prefault = None

    def begin(self, metadata: AttentionMetadata) -> None:
        self._step, self._chunked = self._step_of(metadata), {}

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
        wanted = value.dtype
        if key.dtype != query.dtype:
            query, key = query.to(wanted), key.to(wanted)
        options = scaling, window, softcap, sinks
        return self._compute(layer, query, _last_dim_dense(key), _last_dim_dense(value), wanted, *options)

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        nothing = key.new_empty(0, key.shape[1], key.shape[2])
        self.forward(layer, nothing, key, value, scaling=1.0, window=0, softcap=0.0, sinks=None)

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
        return self._compute(layer, query, None, None, dtype, scaling, window, softcap, sinks)

    def _compute(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        wanted: torch.dtype,
        scaling: float,
        window: int,
        softcap: float,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        """What `forward` and `attend` return. Without key and value, the kernel writes nothing."""
        query, dtype = _last_dim_dense(query), wanted
        if (query.dtype, dtype, self._dtype) not in ATTENTION_TYPES:
            query, dtype = query.float(), torch.float32
            key, value = (None, None) if key is None or value is None else (key.float(), value.float())
        k_cache, v_cache = self._cache[layer]
        num_tokens, num_q_heads, head_dim = query.shape
        num_kv_heads, v_head_dim = k_cache.shape[1], self._layers[layer].v_head_dim
        out = query.new_empty(num_tokens, num_q_heads, v_head_dim, dtype=dtype)
        if v_cache is None and sinks is not None:
            raise ValueError("the CPU kernel has no sinks where values are in the keys")
        step = self._step_in(self._layers[layer].chunk)
        args = step.with_tiles(num_q_heads // num_kv_heads if num_tokens else 0)
        args.key_end = step.key_ends[window > 0]
        args.slots, args.block_table = step.window_tables if layer in self._windowed else step.tables
        args.q, args.out = query.data_ptr(), out.data_ptr()
        args.q_stride_t, args.q_stride_h, _ = query.stride()
        if key is None or value is None:
            args.k = args.v = None
        else:
            args.k, args.v = key.data_ptr(), value.data_ptr()
            args.k_stride_t, args.k_stride_h, _ = key.stride()
            args.v_stride_t, args.v_stride_h, _ = value.stride()
        args.k_cache, args.v_cache = k_cache.data_ptr(), None if v_cache is None else v_cache.data_ptr()
        args.num_q_heads, args.num_kv_heads, args.head_dim, args.v_head_dim = num_q_heads, num_kv_heads, head_dim, v_head_dim
        args.scaling, args.softcap, args.window = scaling, softcap, window
        sinks = None if sinks is None else sinks.float().contiguous()
        args.sinks = None if sinks is None else sinks.data_ptr()
        self._kernels.paged_attention(args, (query.dtype, dtype, self._dtype))
        return out.to(wanted)

    def _step_of(self, metadata: AttentionMetadata) -> StepArgs:
        return StepArgs(metadata, self._block_size, self._kernels.row_tile, has_windows=bool(self._windowed))

    def _step_in(self, chunk: int) -> StepArgs:
        if chunk and chunk not in self._chunked:
            metadata = self._step.metadata.in_chunks(chunk, self._block_size)
            self._chunked[chunk] = self._step if metadata is self._step.metadata else self._step_of(metadata)
        return self._chunked[chunk] if chunk else self._step

    def read(self, layer: int, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of slots (int64), [*slots.shape, num_kv_heads, head_dim] each; fp32 of a cache in int8."""
        shape, (k_cache, v_cache) = self._layers[layer], self._cache[layer]
        place, per_word = (slots // self._block_size, slots % self._block_size), _WORD_BYTES // self._dtype.itemsize
        words = -(-shape.head_dim // per_word)
        keys, scales = self._parts(k_cache, (words, self._block_size, per_word))
        read_keys = keys[place[0], :, :, place[1]].flatten(-2)[..., : shape.head_dim]
        if scales is not None:
            read_keys = read_keys * scales[place[0], :, place[1], None]
        if v_cache is None:
            return read_keys, read_keys[..., : shape.v_head_dim]
        values, scales = self._parts(v_cache, (self._block_size // per_word, shape.v_head_dim, per_word))
        read_values = values[place[0], :, place[1] // per_word, :, place[1] % per_word]
        return read_keys, read_values if scales is None else read_values * scales[place[0], :, place[1], None]

    def _parts(self, cache: torch.Tensor, shape: tuple[int, int, int]) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The numbers of keys or values as they are stored, [num_blocks, num_kv_heads, *shape], and in int8 their scales
        [num_blocks, num_kv_heads, block_size]."""
        flat, size = cache.flatten(2), math.prod(shape)
        scales = flat[:, :, size:].view(torch.float32) if self._dtype == torch.int8 else None
        return flat[:, :, :size].unflatten(2, shape), scales

    @property
    def metadata(self) -> AttentionMetadata:
        """Of the step."""
        return self._step.metadata

    @property
    def block_size(self) -> int:
        return self._block_size

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the cache."""
        return self._dtype

    def layer_args(self, layers: tuple[int, ...], group: int) -> tuple[int, int, int]:
        """Arguments for a kernel that computes whole layers: the address of the step's KernelArgs, without the fields that depend
        on the layer, and the addresses of two arrays with the addresses of the layers' keys and values, null for those without.

        Args:
            group: query heads per key head; 0 if no layer attends.
        """
        if layers not in self._addresses:
            if any(self._layers[layer].chunk for layer in layers if layer in self._layers):
                raise ValueError("no kernel computes whole layers whose tokens attend within chunks")
            caches = zip(*(self._cache[layer] if layer in self._layers else (None, None) for layer in layers), strict=True)
            addresses = ((None if one is None else one.data_ptr() for one in part) for part in caches)
            keys, values = ((ctypes.c_void_p * len(layers))(*part) for part in addresses)
            self._addresses[layers] = keys, values
        keys, values = self._addresses[layers]
        args = self._step.with_tiles(group)
        args.slots, args.block_table = self._step.tables  # the kernel takes the others where a layer has a window
        return ctypes.addressof(args), ctypes.addressof(keys), ctypes.addressof(values)


def _last_dim_dense(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _allocate(
    layers: dict[int, LayerShape], num_blocks: dict[int, int], block_size: int, dtype: torch.dtype
) -> dict[int, tuple[torch.Tensor, torch.Tensor | None]]:
    """Layer -> keys, values; no values if these are in the keys. Not zeroed: pages that were never touched take no memory.

    num_blocks: of each layer.

    The memory of each layer is contiguous. If instead the same block of all layers were contiguous, memory would be used in smaller
    portions, but the attention of each layer would touch more pages than the TLB holds: with 8 x 4,000 tokens, that took a tenth
    longer.
    """
    line, per_word = _LINE_BYTES // dtype.itemsize, _WORD_BYTES // dtype.itemsize
    scale = SCALE_BYTES if dtype == torch.int8 else 0
    shapes = {
        index: (
            (num_blocks[index], shape.num_kv_heads, -(-shape.head_dim // per_word) * per_word + scale, block_size),
            *([] if shape.values_in_keys else [(num_blocks[index], shape.num_kv_heads, block_size, shape.v_head_dim + scale)]),
        )
        for index, shape in layers.items()
    }
    sizes = [-(-math.prod(shape) // line) * line for some in shapes.values() for shape in some]
    parts = iter(HugePages().empty(sum(sizes), dtype=dtype).split(sizes))

    def part(shape: tuple[int, ...]) -> torch.Tensor:
        return next(parts)[: math.prod(shape)].view(shape)

    return {index: (part(keys), part(*values) if values else None) for index, (keys, *values) in shapes.items()}
