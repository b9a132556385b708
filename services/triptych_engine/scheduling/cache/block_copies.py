"""Copies between the KV cache and the second tier of the prefix cache.

A block that is evicted is stored in the tier: the executor copies it before the step that overwrites it. A prompt whose beginning
is in the tier waits until it is loaded. The load is like a request that computes these blocks: it holds them, others wait for them
as for any that are being computed, and at its end they are cached prefixes, which nobody holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from triptych_engine.kv_offload.host_tier import HostTier
from triptych_engine.scheduling.cache.block_pool import BlockPool

#: What a step may copy for loads: in bytes, if no sequence decodes in it. Else the share of the decoding's time in which so many
#: bytes a second can be copied; most machines are faster.
_BYTES_ALONE, _SHARE, _BYTES_PER_S = 64 << 20, 0.06, 4e9


@dataclass(eq=False, slots=True)
class BlockLoad:
    """Blocks of one prompt that are being loaded, in order."""

    #: Before them, in the KV cache already.
    prefix: list[int]
    blocks: list[int]
    slots: list[int]
    #: Called with those that were loaded, from the first one on, while all are still held.
    on_loaded: Callable[[Sequence[int]], None]
    #: Block -> slot to which its content goes before it is loaded: others were evicted for this load.
    evicted: dict[int, int]
    #: So many may be loaded; then one is not as it was stored, or could not be loaded.
    end: int = field(init=False)
    num_issued: int = 0
    num_in_flight: int = 0

    def __post_init__(self) -> None:
        self.end = len(self.blocks)


class BlockCopies:
    """Plans the copies of each step, and keeps track of them.

    Args:
        pool: the blocks of the KV cache.
        tier: where other blocks are.
    """

    def __init__(self, pool: BlockPool, tier: HostTier) -> None:
        self._pool, self.tier = pool, tier
        pool.on_evicted = self._store
        self._loads: list[BlockLoad] = []
        self._load_of: dict[int, BlockLoad] = {}  # block that is being loaded -> its load
        self._stores: list[tuple[int, int]] = []  # of the next step
        self._block_bytes = sum(tier.block_bytes)

    @property
    def has_work(self) -> bool:
        """Whether the next step has copies to make."""
        return bool(self._stores) or any(load.num_issued < load.end for load in self._loads)

    @property
    def holders(self) -> list[Sequence[int]]:
        """The blocks that each load holds."""
        return [load.prefix + load.blocks for load in self._loads]

    def load(self, prefix: list[int], hashes: Sequence[bytes], on_loaded: Callable[[Sequence[int]], None]) -> int:
        """Begin to load blocks that the tier holds; so many must be free. Returns how many the tier still holds.

        Args:
            prefix: the blocks before them, in the KV cache.
            on_loaded: see BlockLoad.
        """
        slots = self.tier.pin(hashes)
        if not slots:  # others use the tier, too
            return 0
        self._pool.hold(prefix)
        num_stores = len(self._stores)
        blocks = self._pool.allocate(len(slots))
        if blocks is None:
            raise AssertionError("blocks that were counted as free could not be allocated")
        # All at once would be a long step.
        evicted, self._stores = dict(self._stores[num_stores:]), self._stores[:num_stores]
        load = BlockLoad(prefix, blocks, slots, on_loaded, evicted)
        self._loads.append(load)
        self._load_of.update((block, load) for block in blocks)
        return len(slots)

    def take(self, decoding_s: float) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """The next step's copies as pairs of a block and a slot: those to store before, and those to load after these.

        Args:
            decoding_s: how long the sequences that decode in the step take, in seconds; 0 for none.
        """
        stores, self._stores = self._stores, []
        loads = list[tuple[int, int]]()
        size = min(_BYTES_ALONE, _SHARE * decoding_s * _BYTES_PER_S) if decoding_s else _BYTES_ALONE
        room = max(1, int(size / self._block_bytes))
        for load in list(self._loads):
            while room > 0 and load.num_issued < load.end:
                number, block = load.num_issued, load.blocks[load.num_issued]
                if not self.tier.is_intact(load.slots[number]):
                    load.end = number
                    break
                if (slot := load.evicted.pop(block, None)) is not None:
                    stores.append((block, slot))
                    room -= 1
                loads.append((block, load.slots[number]))
                load.num_issued += 1
                load.num_in_flight += 1
                room -= 1
            self._end_if_over(load)
        return stores, loads

    def offer(self, blocks: Sequence[int], hashes: Sequence[bytes]) -> list[tuple[int, int]]:
        """The copies by which the tier gets blocks that a step computes, or that are cached. Without those that it has already."""
        slots = map(self.tier.reserve, hashes)
        return [(block, slot) for block, slot in zip(blocks, slots, strict=True) if slot is not None]

    def stored(self, copies: Sequence[tuple[int, int]], *, failed: bool) -> None:
        """A step that stores blocks has ended."""
        for _, slot in copies:
            if failed:
                self.tier.abandon(slot)
            else:
                self.tier.complete(slot)

    def loaded(self, loads: Sequence[tuple[int, int]], *, failed: bool) -> None:
        """A step that loads blocks has ended."""
        for block, _ in loads:
            load = self._load_of[block]
            load.num_in_flight -= 1
            if failed:
                load.end = min(load.end, load.blocks.index(block))
            self._end_if_over(load)

    def cancel(self) -> None:
        """Give up all loads, those in flight when their steps have ended: what they bring is not cached."""
        for load in list(self._loads):
            load.end = 0
            self._end_if_over(load)

    def _store(self, block: int, block_hash: bytes) -> None:
        slot = self.tier.reserve(block_hash)
        if slot is not None:
            self._stores.append((block, slot))

    def _end_if_over(self, load: BlockLoad) -> None:
        if load.num_in_flight or load.num_issued < load.end:
            return
        self._loads.remove(load)
        for slot in load.evicted.values():
            self.tier.abandon(slot)
        for block in load.blocks:
            del self._load_of[block]
        self.tier.statistics.num_loaded += load.end
        self.tier.unpin(load.slots)
        load.on_loaded(load.blocks[: load.end])
        self._pool.release(load.prefix + load.blocks)
