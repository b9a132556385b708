"""The cache of layers with a window without a model: in place of keys and values, a slot has the prefix up to its token."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from triptych_engine.scheduling.output import NewSequence


class FakeWindows:
    """The blocks of a `FakeRunner`'s second group. A key within a token's window that is not its own fails a test at once."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self.window = 0  # tokens; 0 without such layers
        self._tables: dict[str, list[int]] = {}  # request_id -> blocks
        self._keys: dict[tuple[int, int], int] = {}  # (block, offset) -> hash of the prefix up to its token

    def begin(self, new: Sequence[NewSequence], added: Mapping[str, Sequence[int]]) -> None:
        """Blocks that sequences get before a step."""
        self._tables.update({sequence.request_id: list(sequence.window_block_ids) for sequence in new})
        for request_id, blocks in added.items():
            self._tables[request_id] += blocks

    def compute(self, request_id: str, start: int, end: int, prefix: Callable[[int], int]) -> None:
        """Write the keys of tokens `start` to `end`, then attend to those before.

        Args:
            prefix: the hash of a sequence up to a position.
        """
        if not self.window:
            assert not self._tables.get(request_id)
            return
        for position in range(start, end):
            self._keys[self._slot(request_id, position)] = prefix(position)
        for position in range(max(0, start - self.window + 1), end):
            assert self._keys.get(self._slot(request_id, position)) == prefix(position), f"{request_id} reads another one's keys"

    def write(self, request_id: str, position: int, key: int) -> None:
        """Write the key of a token that was sampled in a step."""
        if self.window:
            self._keys[self._slot(request_id, position)] = key

    def _slot(self, request_id: str, position: int) -> tuple[int, int]:
        block = self._tables[request_id][position // self._block_size]
        assert block >= 0, f"{request_id} reads or writes behind its window"
        return block, position % self._block_size

    def clear(self) -> None:
        """Lose all."""
        self._keys.clear()
