"""Launches the Triton kernels that attend over the paged KV cache."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import torch
import triton

from triptych_engine.runner.attention.paged import LayerShape
from triptych_engine.runner.cuda.kernels import cache as cache_kernels
from triptych_engine.runner.cuda.kernels import paged_attention as kernels
from triptych_engine.runner.cuda.step import DecodeTokens, PromptTiles, StepTensors

#: A decoding step is split by keys until it has so many programs per multiprocessor: enough to hide the latency of memory.
_PROGRAMS_PER_PROCESSOR = 2
_MOST_SPLITS = 32
_WRITE_BLOCK = 1024
_MOST_DIMS = 512
#: Shared memory of a thread block on the smallest GPUs with bfloat16 instructions (compute capability 8.6 and 8.9), in bytes.
_LEAST_SHARED = 99 << 10
#: GPUs with more multiply whole warp groups at once, and keep more results in registers (A100, H100, B200).
_AMPLE_SHARED = 160 << 10
_MOST_STAGES = 3


@dataclass(frozen=True, slots=True)
class Tiles:
    """How a kernel divides its work.

    Attributes:
        rows: of query heads, times tokens of a prompt. Tensor cores need 16.
        keys: computed at once.
        num_stages: how many tiles of keys and values are in shared memory, or on their way to it.
    """

    rows: int
    keys: int
    num_stages: int
    num_warps: int = 4


def refusal(shape: LayerShape) -> str | None:
    """The reason why the kernels do not support such a layer; None if they do."""
    if shape.values_in_keys:
        return "the keys of an indexer"
    dim = max(shape.head_dim, shape.v_head_dim)
    return f"heads of {dim} dimensions" if dim > _MOST_DIMS else None


def write(key: torch.Tensor, value: torch.Tensor, cache: tuple[torch.Tensor, torch.Tensor], slots: torch.Tensor) -> None:
    """Write keys and values, [num_tokens, num_kv_heads, dim] each with dense heads, to their slots of the cache."""
    (num_tokens, num_kv_heads, dim), v_dim = key.shape, value.shape[2]
    grid = (num_tokens, triton.cdiv(num_kv_heads * max(dim, v_dim), _WRITE_BLOCK))
    cache_kernels.write_kernel[grid](
        key, value, *cache, slots, key.stride(0), key.stride(1), value.stride(0), value.stride(1),
        NUM_KV_HEADS=num_kv_heads, HEAD_DIM=dim, V_HEAD_DIM=v_dim, BLOCK=_WRITE_BLOCK,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Layer:
    """What the kernels need of a layer."""

    device: torch.device
    cache_dtype: torch.dtype
    num_q_heads: int
    shape: LayerShape
    block_size: int
    scaling: float
    window: int
    softcap: float
    sinks: torch.Tensor | None

    @property
    def group(self) -> int:
        """Query heads per key head."""
        return self.num_q_heads // self.shape.num_kv_heads

    @property
    def prompt_tiles(self) -> Tiles:
        return prompt_tiles(self.shape, self.cache_dtype.itemsize, self.group, _shared_memory(self.device))

    @property
    def tile_tokens(self) -> int:
        """Tokens in a tile of a prompt."""
        return self.prompt_tiles.rows // self.group

    def options(self) -> tuple[torch.Tensor | None, float, float, int]:
        return self.sinks, self.scaling, self.softcap, self.window

    def constants(self) -> dict[str, int | bool]:
        shape = self.shape
        return {
            "BLOCK_SIZE": self.block_size, "GROUP": self.group, "NUM_Q_HEADS": self.num_q_heads,
            "HEAD_DIM": shape.head_dim, "V_HEAD_DIM": shape.v_head_dim, "PADDED_DIM": _padded(shape.head_dim),
            "PADDED_V_DIM": _padded(shape.v_head_dim), "HAS_WINDOW": self.window > 0, "HAS_SOFTCAP": self.softcap > 0,
            "HAS_SINKS": self.sinks is not None,
        }  # fmt: skip


def decode(
    layer: Layer,
    query: torch.Tensor,
    cache: tuple[torch.Tensor, torch.Tensor],
    out: torch.Tensor,
    step: StepTensors,
    tokens: DecodeTokens,
) -> None:
    """Attend for decoding tokens. query, out: [num_tokens, num_q_heads, dim] of the whole step, with dense heads."""
    shape, count = layer.shape, len(tokens.sequences)
    tiles = decode_tiles(shape, layer.cache_dtype.itemsize, layer.group, _shared_memory(layer.device))
    num_splits = _num_splits(count * shape.num_kv_heads, tokens.most_keys, tiles.keys, _num_processors(layer.device))
    partial_out = partial_sums = out
    if num_splits > 1:
        partial_out = torch.empty(count, layer.num_q_heads, num_splits, shape.v_head_dim, dtype=torch.float32, device=out.device)
        partial_sums = torch.empty(count, layer.num_q_heads, num_splits, dtype=torch.float32, device=out.device)
    kernels.decode_kernel[count, shape.num_kv_heads, num_splits](
        query, *cache, out, partial_out, partial_sums, step.block_table, step.blocks_per_row, step.seq_lens,
        tokens.sequences, tokens.tokens, *layer.options(), *_strides(query, shape), num_splits,
        IS_SPLIT=num_splits > 1, **_constants(tiles), **layer.constants(),
    )  # fmt: skip
    if num_splits > 1:
        kernels.join_kernel[count, layer.num_q_heads](
            out, partial_out, partial_sums, step.seq_lens, tokens.sequences, tokens.tokens, layer.window, num_splits,
            NUM_Q_HEADS=layer.num_q_heads, V_HEAD_DIM=shape.v_head_dim, PADDED_V_DIM=_padded(shape.v_head_dim),
            PADDED_SPLITS=_MOST_SPLITS, TILE=tiles.keys, HAS_WINDOW=layer.window > 0, num_warps=4,
        )  # fmt: skip


def prompts(
    layer: Layer,
    query: torch.Tensor,
    cache: tuple[torch.Tensor, torch.Tensor],
    out: torch.Tensor,
    step: StepTensors,
    tiles: PromptTiles,
) -> None:
    """Attend for the tokens of tiles; other arguments as for `decode`."""
    shape = layer.shape
    kernels.prompt_kernel[len(tiles.sequences), shape.num_kv_heads](
        query, *cache, out, step.block_table, step.blocks_per_row, step.query_start_loc, step.positions, step.key_ends,
        tiles.sequences, tiles.tokens, *layer.options(), *_strides(query, shape),
        **_constants(layer.prompt_tiles), **layer.constants(),
    )  # fmt: skip


def _strides(query: torch.Tensor, shape: LayerShape) -> tuple[int, int, int, int]:
    """Of the query's tokens and heads, and of the slots of keys and of values."""
    return query.stride(0), query.stride(1), shape.num_kv_heads * shape.head_dim, shape.num_kv_heads * shape.v_head_dim


def _padded(dim: int) -> int:
    return max(16, triton.next_power_of_2(dim))


def _constants(tiles: Tiles) -> dict[str, int]:
    return {"ROWS": tiles.rows, "TILE": tiles.keys, "num_warps": tiles.num_warps, "num_stages": tiles.num_stages}


@functools.cache
def decode_tiles(shape: LayerShape, itemsize: int, group: int, shared_memory: int) -> Tiles:
    """Of `decode_kernel`. itemsize: bytes of a number in the cache; shared_memory: of a thread block, in bytes."""
    return _tiles(shape, itemsize, max(16, triton.next_power_of_2(group)), 64, shared_memory)


@functools.cache
def prompt_tiles(shape: LayerShape, itemsize: int, group: int, shared_memory: int) -> Tiles:
    """Of `prompt_kernel`. The results of all rows are in registers, so wide heads and wide numbers leave room for fewer."""
    dim = max(_padded(shape.head_dim), _padded(shape.v_head_dim))
    rows = 32 if itemsize > 2 or (dim > 128 and shared_memory < _AMPLE_SHARED) else 64 if dim > 256 else 128
    tiles = _tiles(shape, itemsize, max(rows, triton.next_power_of_2(group)), 128 if dim <= 64 else 64, shared_memory)
    num_stages = min(2, tiles.num_stages)  # more is slower, as measured on an H200
    return replace(tiles, num_stages=num_stages, num_warps=8 if dim > 128 and itemsize <= 2 else 4)


def _tiles(shape: LayerShape, itemsize: int, rows: int, most_keys: int, shared_memory: int) -> Tiles:
    """The largest tiles that fit, of at most so many keys."""
    dims = _padded(shape.head_dim), _padded(shape.v_head_dim)
    keys = max(16, min(most_keys, (64 if itemsize > 2 else 128) * 64 // max(dims)))
    left = shared_memory - rows * dims[0] * itemsize
    num_stages = left // (keys * sum(dims) * itemsize)
    return Tiles(rows, keys, max(1, min(num_stages, _MOST_STAGES)))


def _num_splits(num_programs: int, most_keys: int, tile: int, num_processors: int) -> int:
    """Into how many parts the keys of each sequence are split: the same number in each replay of a recorded step."""
    wanted = triton.cdiv(_PROGRAMS_PER_PROCESSOR * num_processors, num_programs)
    return max(1, min(wanted, _MOST_SPLITS, triton.cdiv(most_keys, tile)))


@functools.cache
def _num_processors(device: torch.device) -> int:
    """Multiprocessors of a GPU; under Triton's interpreter, where a device is a CPU, a number that makes tests split."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


@functools.cache
def _shared_memory(device: torch.device) -> int:
    if device.type != "cuda":
        return _LEAST_SHARED
    index = torch.cuda.current_device() if device.index is None else device.index
    return int(triton.runtime.driver.active.utils.get_device_properties(index)["max_shared_mem"])
