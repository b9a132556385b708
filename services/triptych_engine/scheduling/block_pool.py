"""The pool of KV cache blocks: reference counts, cached prefixes and the free list.

A block is free when no request holds it. A free block keeps its content and can be found by its hash until it is allocated again;
the block that has been free for the longest time is allocated first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class BlockPool:
    """Reference counts, the free list in LRU order and the index of cached prefixes, over block ids 0..num_blocks-1."""

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"a block pool needs at least one block, not {num_blocks}")
        self.num_blocks = num_blocks
        self._ref_count = [0] * num_blocks
        self._hash_of: list[bytes | None] = [None] * num_blocks
        self._block_of: dict[bytes, int] = {}  # hash -> the block that holds that prefix
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))  # least recently used first
        #: Prefixes that were added to the index (True) or removed from it since `take_changes`; None while nobody watches.
        self._changes: dict[bytes, bool] | None = None
        self._num_changes = 0

    @property
    def num_free_blocks(self) -> int:
        return len(self._free)

    def find_prefix(self, hashes: Iterable[bytes]) -> list[int]:
        """The blocks that hold the longest cached prefix of a hash chain. Changes nothing."""
        blocks = []
        for block_hash in hashes:
            block = self._block_of.get(block_hash)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def num_free_among(self, blocks: Iterable[int]) -> int:
        """How many of the blocks are free, so that holding them takes them off the free list."""
        return sum(1 for block in blocks if self._ref_count[block] == 0)

    def hold(self, blocks: Iterable[int]) -> None:
        """Add one holder to each block; takes free ones off the free list."""
        for block in blocks:
            if self._ref_count[block] == 0:
                del self._free[block]
            self._ref_count[block] += 1

    def allocate(self, num_blocks: int) -> list[int] | None:
        """Take blocks from the head of the free list and remove their cached prefixes from the index. Returns None, and changes
        nothing, if too few are free."""
        if num_blocks > len(self._free):
            return None
        blocks = []
        for _ in range(num_blocks):
            block, _ = self._free.popitem(last=False)
            self._forget(block)
            self._ref_count[block] = 1
            blocks.append(block)
        return blocks

    def release(self, blocks: Sequence[int]) -> None:
        """Remove one holder from each block. The blocks must be in token order. Of the blocks that become free, those with later
        tokens are reused first, because a prefix can be found only from its start."""
        for block in reversed(blocks):
            self._ref_count[block] -= 1
            if self._ref_count[block] < 0:
                raise AssertionError(f"block {block} was released more often than it was held")
            if self._ref_count[block] == 0:
                self._free[block] = None
                if self._hash_of[block] is None:  # it caches no prefix: reuse it first
                    self._free.move_to_end(block, last=False)

    def cache(self, block: int, block_hash: bytes) -> None:
        """Add a held, fully computed block to the index. If another block already caches the same prefix, the index keeps that
        one."""
        if self._hash_of[block] is None and block_hash not in self._block_of:
            self._hash_of[block] = block_hash
            self._block_of[block_hash] = block
            self._note(block_hash, True)

    def reset_cache(self) -> int:
        """Drop all cached prefixes; held blocks stay held. Returns how many were dropped."""
        num_forgotten = len(self._block_of)
        for block_hash in self._block_of:
            self._note(block_hash, False)
        self._block_of.clear()
        self._hash_of = [None] * self.num_blocks
        return num_forgotten

    def _forget(self, block: int) -> None:
        block_hash = self._hash_of[block]
        if block_hash is not None:
            del self._block_of[block_hash]
            self._hash_of[block] = None
            self._note(block_hash, False)

    def watch(self) -> tuple[int, list[bytes]]:
        """Begin to record changes. Returns the number of the last changes that were taken, and all prefixes in the index now."""
        self._changes = {}
        return self._num_changes, list(self._block_of)

    def take_changes(self) -> tuple[int, list[bytes], list[bytes]] | None:
        """The prefixes that were added to the index and removed from it since the last call, with the number of these changes.
        None if there are none, or nobody watches."""
        if not self._changes:
            return None
        changes, self._changes = self._changes, {}
        self._num_changes += 1
        added = [block_hash for block_hash, is_there in changes.items() if is_there]
        return self._num_changes, added, [block_hash for block_hash, is_there in changes.items() if not is_there]

    def _note(self, block_hash: bytes, is_there: bool) -> None:
        if self._changes is not None:
            self._changes[block_hash] = is_there

    def check_integrity(self, holders: Iterable[Sequence[int]]) -> None:
        """Raise AssertionError unless counts, free list and index agree with who holds what.

        Args:
            holders: the blocks of each live request.
        """
        expected = [0] * self.num_blocks
        for blocks in holders:
            if len(set(blocks)) != len(blocks):
                raise AssertionError(f"a request holds a block twice: {blocks}")
            for block in blocks:
                expected[block] += 1
        if expected != self._ref_count:
            wrong = [b for b in range(self.num_blocks) if expected[b] != self._ref_count[b]]
            raise AssertionError(f"reference counts are wrong for blocks {wrong}")
        if set(self._free) != {b for b in range(self.num_blocks) if expected[b] == 0}:
            raise AssertionError("the free list is not the set of blocks without holders")
        indexed = {block: block_hash for block_hash, block in self._block_of.items()}
        if indexed != {b: h for b, h in enumerate(self._hash_of) if h is not None}:
            raise AssertionError("the prefix index and the blocks' hashes disagree")
