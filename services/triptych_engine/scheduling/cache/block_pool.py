"""The pool of KV cache blocks: reference counts, cached prefixes and the free list.

A block is free when no request holds it. A free block keeps its content and can be found by its hash until it is allocated again;
the block that has been free for the longest time is allocated first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

#: What a block depends on besides its tokens, as vLLM's KV events name it: media as (identifier, offset in the block), or a digest.
ExtraKey = tuple[str, int] | bytes


@dataclass(slots=True)
class BlockStored:
    """Blocks of one prompt, in order, that were added to the index. Names as in vLLM's KV events."""

    #: Of the block before the first; None at the start of a prompt.
    parent_block_hash: bytes | None
    #: What stands before the first block of the prompt.
    cache_salt: str
    block_hashes: list[bytes] = field(default_factory=list)
    #: Of all the blocks.
    token_ids: list[int] = field(default_factory=list)
    #: One entry per block.
    extra_keys: list[tuple[ExtraKey, ...]] = field(default_factory=list)


@dataclass(slots=True)
class BlockRemoved:
    """Blocks that are no longer found."""

    block_hashes: list[bytes]


@dataclass(slots=True)
class AllBlocksCleared:
    """The index is empty."""


KVEvent = BlockStored | BlockRemoved | AllBlocksCleared


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
        #: Called with each block that is about to be overwritten, and the prefix that it caches.
        self.on_evicted: Callable[[int, bytes], None] = lambda block, block_hash: None
        #: Prefixes that were added to the index (True) or removed from it since `take_changes`; None while nobody watches.
        self._changes: dict[bytes, bool] | None = None
        self._num_changes = 0
        #: The same with their order and their tokens, since `take_events`; None unless they are recorded.
        self._events: list[KVEvent] | None = None

    @property
    def num_free_blocks(self) -> int:
        return len(self._free)

    def __contains__(self, block_hash: bytes) -> bool:
        """Whether a block holds this prefix."""
        return block_hash in self._block_of

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

    def cache(self, block: int, block_hash: bytes) -> bool:
        """Add a held, fully computed block to the index. If another block already caches the same prefix, the index keeps that
        one. Returns whether the prefix is new in the index; then, if events are recorded, `note_stored` must follow."""
        if self._hash_of[block] is not None or block_hash in self._block_of:
            return False
        self._hash_of[block] = block_hash
        self._block_of[block_hash] = block
        self._note(block_hash, True)
        return True

    def reset_cache(self) -> int:
        """Drop all cached prefixes; held blocks stay held. Returns how many were dropped."""
        num_forgotten = len(self._block_of)
        for block_hash in self._block_of:
            self._note(block_hash, False)
        if self._events is not None:
            self._events.append(AllBlocksCleared())
        self._block_of.clear()
        self._hash_of = [None] * self.num_blocks
        return num_forgotten

    def _forget(self, block: int) -> None:
        block_hash = self._hash_of[block]
        if block_hash is not None:
            del self._block_of[block_hash]
            self._hash_of[block] = None
            self._note(block_hash, False)
            self.on_evicted(block, block_hash)
            if self._events is not None:
                self._note_removed(self._events, block_hash)

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

    # -- events -----------------------------------------------------------------------------------------------------------------

    @property
    def records_events(self) -> bool:
        return self._events is not None

    def record_events(self) -> None:
        """Record events from now on. Somebody must take them."""
        self._events = []

    def take_events(self) -> list[KVEvent]:
        """What has happened to the index since the last call, in order. Empty unless events are recorded."""
        if not self._events:
            return []
        events, self._events = self._events, []
        return events

    def note_stored(
        self,
        block_hash: bytes,
        parent: bytes | None,
        token_ids: Sequence[int],
        extra_keys: tuple[ExtraKey, ...] = (),
        cache_salt: str = "",
    ) -> None:
        """Record that a block was added to the index."""
        if self._events is None:
            return
        event = self._events[-1] if self._events else None
        if not isinstance(event, BlockStored) or event.block_hashes[-1] != parent:
            event = BlockStored(parent, cache_salt)
            self._events.append(event)
        event.block_hashes.append(block_hash)
        event.token_ids += token_ids
        event.extra_keys.append(extra_keys)

    @staticmethod
    def _note_removed(events: list[KVEvent], block_hash: bytes) -> None:
        if events and isinstance(events[-1], BlockRemoved):
            events[-1].block_hashes.append(block_hash)
        else:
            events.append(BlockRemoved([block_hash]))

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
