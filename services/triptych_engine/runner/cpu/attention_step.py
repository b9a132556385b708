"""What the attention kernel is told about a step, for all layers."""

from __future__ import annotations

from typing import Any

import numpy as np

from triptych_engine.runner.attention.paged import AttentionMetadata
from triptych_engine.runner.cpu.kernel_args import KernelArgs

_Tiles = tuple[np.ndarray, np.ndarray, np.ndarray]


class StepArgs:
    """Arguments of a step, and its tiles.

    Args:
        row_tile: rows (tokens x query heads per key head) of a tile, at most.
        has_windows: whether layers with a window have blocks of their own.

    Attributes:
        tables: addresses of slots and block table.
        window_tables: the same of layers with a window, if these have blocks of their own.
    """

    def __init__(self, metadata: AttentionMetadata, block_size: int, row_tile: int, *, has_windows: bool = False) -> None:
        self.metadata, self._row_tile = metadata, row_tile
        self._tiles: dict[int, _Tiles] = {}
        self._key_end = metadata.key_ends(has_window=True)
        self._full_key_end = metadata.key_ends(has_window=False) if metadata.ends_in_windows else self._key_end
        #: Addresses of the ends of the tokens' keys: in layers without a window, and in those with one.
        self.key_ends = self._full_key_end.ctypes.data, self._key_end.ctypes.data
        window = (metadata.window_slots, metadata.window_block_table) if has_windows else (None, None)
        self.window_tables: Any = tuple(None if array is None else array.ctypes.data for array in window)
        self.tables = metadata.slots.ctypes.data, metadata.block_table.ctypes.data
        self._args = KernelArgs(
            window_slots=self.window_tables[0],
            window_block_table=self.window_tables[1],
            positions=metadata.positions.ctypes.data,
            key_end=self.key_ends[True],
            full_key_end=self.key_ends[False] if metadata.ends_in_windows else None,
            num_tokens=metadata.num_tokens,
            block_table_stride=metadata.block_table.strides[0] // 4,
            block_size=block_size,
        )

    def with_tiles(self, group: int) -> KernelArgs:
        """The arguments, without the fields that depend on the layer. group: query heads per key head; 0 for no tiles."""
        seq, start, length = self._tiles_for(group) if group else _NO_TILES
        args = self._args
        args.tile_seq, args.tile_start, args.tile_len = seq.ctypes.data, start.ctypes.data, length.ctypes.data
        args.num_tiles = len(seq)
        return args

    def _tiles_for(self, group: int) -> _Tiles:
        """Cut each sequence's tokens into tiles of at most row_tile / group: (sequence, first token, tokens) of each, int32."""
        if group not in self._tiles:
            start = self.metadata.query_start_loc
            lengths = np.diff(start)
            if (lengths == 1).all():  # most steps
                every = np.arange(len(lengths), dtype=np.int32)
                self._tiles[group] = every, every, lengths
                return self._tiles[group]
            size = max(1, self._row_tile // group)
            counts = -(-lengths // size)
            seq = np.repeat(np.arange(len(lengths), dtype=np.int32), counts)
            within = np.arange(len(seq)) - np.repeat(np.cumsum(counts) - counts, counts)
            first = (start[seq] + within * size).astype(np.int32)
            self._tiles[group] = (seq, first, np.minimum(size, start[seq + 1] - first).astype(np.int32))
        return self._tiles[group]


_NO_TILES: _Tiles = (np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.int32))
