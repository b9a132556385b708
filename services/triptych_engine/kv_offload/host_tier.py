"""The second tier of the prefix cache: blocks in the host's memory, by the hash of all tokens up to their end.

Blocks come here when the KV cache evicts them. A slot has a digest of its bytes, which is compared before they are used: whatever
went wrong with them, the block is then computed again.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import xxhash

from triptych_engine.kv_offload.host_memory import HostMemory, Slots


@dataclass(slots=True)
class OffloadStatistics:
    """Blocks, since the start."""

    num_stored: int = 0
    num_loaded: int = 0
    #: Those whose bytes were not as they were stored.
    num_corrupt: int = 0


class HostTier:
    """Slots for blocks, and which block each one holds. Of those that nobody uses, the least recently used one makes room.

    All methods may be called on any thread.

    Args:
        memory: the slots' memory.
        block_bytes: size of a block, of each rank.
    """

    def __init__(self, memory: HostMemory, block_bytes: Sequence[int]) -> None:
        self.slots = Slots(memory, block_bytes)
        self.block_bytes, self.num_slots = self.slots.block_bytes, self.slots.num_slots
        #: Called with hash, digest and bytes, by rank, of a block that makes room for another one. The bytes are valid during the
        #: call. Must not block.
        self.on_evicted: Callable[[bytes, bytes, Sequence[memoryview]], None] | None = None
        self.statistics = OffloadStatistics()
        self._lock = threading.RLock()
        self._free = list(range(self.num_slots))[::-1]
        self._ready: OrderedDict[bytes, int] = OrderedDict()  # hash -> slot, least recently used first
        self._pending: dict[bytes, int] = {}  # hash -> slot that is being written
        self._hash_of: dict[int, bytes] = {}  # slot -> hash, of both
        self._digests: dict[int, bytes] = {}
        self._pins: dict[int, int] = {}  # slot -> how many use it now
        self._is_cleared = False  # and no block was written since

    @property
    def num_used(self) -> int:
        """Slots that hold a block, or are being written."""
        return self.num_slots - len(self._free)

    def num_found(self, hashes: Sequence[bytes]) -> int:
        """How many of a chain of blocks, from its beginning on, can be read."""
        for number, block_hash in enumerate(hashes):
            if block_hash not in self._ready:
                return number
        return len(hashes)

    def bytes_of(self, slot: int) -> list[memoryview]:
        """The bytes of a slot, by rank."""
        return self.slots.bytes_of(slot)

    # -- writing ----------------------------------------------------------------------------------------------------------------

    def reserve(self, block_hash: bytes) -> int | None:
        """A slot to write a block to; `complete` or `abandon` must follow. None if the block is here already, or all slots are in
        use."""
        with self._lock:
            if block_hash in self._ready:
                self._ready.move_to_end(block_hash)
                return None
            if block_hash in self._pending or (not self._free and not self._evict()):
                return None
            slot, self._is_cleared = self._free.pop(), False
            self._pending[block_hash], self._hash_of[slot], self._pins[slot] = slot, block_hash, 1
            return slot

    def complete(self, slot: int, expected: bytes | None = None) -> bool:
        """A slot was written: its block can be found from now on. False, and not found, if its digest is not the expected one."""
        digest = digest_of(self._hash_of[slot], self.bytes_of(slot))
        is_right = expected is None or digest == expected
        with self._lock:
            block_hash = self._hash_of[slot]
            if self._is_pending(slot) and is_right:
                self._digests[slot] = digest
                self._ready[block_hash] = slot
                self.statistics.num_stored += 1
            self.statistics.num_corrupt += not is_right
            self._end_writing(slot)
        return is_right

    def abandon(self, slot: int) -> None:
        """A slot was not written, or not wholly."""
        with self._lock:
            self._end_writing(slot)

    def _is_pending(self, slot: int) -> bool:
        """Whether a slot is being written that was not cleared since. Its block may be written to another one now."""
        return self._pending.get(self._hash_of[slot]) == slot

    def _end_writing(self, slot: int) -> None:
        if self._is_pending(slot):
            del self._pending[self._hash_of[slot]]
        self._unpin(slot)

    # -- reading ----------------------------------------------------------------------------------------------------------------

    def pin(self, hashes: Sequence[bytes]) -> list[int]:
        """The slots of a chain of blocks, as far as they can be read. They keep their content until `unpin`."""
        with self._lock:
            slots = [self._ready[block_hash] for block_hash in hashes[: self.num_found(hashes)]]
            for slot, block_hash in zip(slots, hashes, strict=False):
                self._pins[slot] = self._pins.get(slot, 0) + 1
                self._ready.move_to_end(block_hash)
            for block_hash in reversed(hashes[: len(slots)]):  # a prefix is found only from its start: keep that longest
                self._ready.move_to_end(block_hash)
            return slots

    def unpin(self, slots: Sequence[int]) -> None:
        """Slots are not used any more."""
        with self._lock:
            for slot in slots:
                self._unpin(slot)

    @contextlib.contextmanager
    def pinned_chain(self) -> Iterator[Callable[[bytes], bool]]:
        """For who brings a chain of blocks here, one by one: within the block, what is here of it makes no room for the rest.

        Yields:
            A function that says whether a block can be read, and keeps it if so. To be called in the order of the chain.
        """
        hashes, slots, is_over = list[bytes](), list[int](), False

        def keep(block_hash: bytes) -> bool:
            with self._lock:  # a thread that copies may still be at work when its task was cancelled
                found = [] if is_over else self.pin([block_hash])
                hashes.extend([block_hash] * len(found))
                slots.extend(found)
                return bool(found)

        try:
            yield keep
        finally:
            with self._lock:
                is_over = True
                self.unpin(self.pin(hashes))  # their order of use is that of a chain again
                self.unpin(slots)

    def is_intact(self, slot: int) -> bool:
        """Whether a pinned slot has the bytes that were stored. If not, its block is not found any more."""
        if digest_of(self._hash_of[slot], self.bytes_of(slot)) == self._digests[slot]:
            return True
        with self._lock:
            self.statistics.num_corrupt += 1
            if self._ready.get(self._hash_of[slot]) == slot:  # else it was cleared, and perhaps stored again
                del self._ready[self._hash_of[slot]]
        return False

    def digest(self, slot: int) -> bytes:
        """Of a pinned slot's bytes, as they were stored."""
        return self._digests[slot]

    # -- making room ------------------------------------------------------------------------------------------------------------

    def clear(self) -> int:
        """Forget all blocks; their memory is given back when nobody uses a slot any more. Returns how many there were."""
        with self._lock:
            num_blocks = len(self._ready)
            slots = [slot for slot in self._ready.values() if slot not in self._pins]
            self._ready.clear()
            self._pending.clear()
            for slot in slots:
                self._give_back(slot)
            self._is_cleared = True
            self._give_memory_back()
            return num_blocks

    def _evict(self) -> bool:
        block_hash = next((one for one, slot in self._ready.items() if slot not in self._pins), None)
        if block_hash is None:
            return False
        slot = self._ready.pop(block_hash)
        if self.on_evicted is not None:
            self.on_evicted(block_hash, self._digests[slot], self.bytes_of(slot))
        self._give_back(slot)
        return True

    def _unpin(self, slot: int) -> None:
        self._pins[slot] -= 1
        if not self._pins[slot]:
            del self._pins[slot]
            if self._ready.get(self._hash_of[slot]) != slot:  # it was abandoned, found corrupt, or cleared
                self._give_back(slot)

    def _give_back(self, slot: int) -> None:
        del self._hash_of[slot]
        self._digests.pop(slot, None)
        self._free.append(slot)
        self._give_memory_back()

    def _give_memory_back(self) -> None:
        # Not whenever no slot is in use: the first use of a page takes long.
        if self._is_cleared and len(self._free) == self.num_slots:
            self.slots.give_back()

    def check_integrity(self) -> None:
        """Raise AssertionError unless slots and blocks agree. For tests."""
        with self._lock:
            held = [*self._ready.values(), *self._pending.values()]
            orphans = [slot for slot in self._pins if slot not in held]  # forgotten while they are used
            if sorted(held + orphans + self._free) != list(range(self.num_slots)):
                raise AssertionError("a slot is lost, or has two owners")
            if set(self._hash_of) != set(held + orphans) or not set(self._pending.values()) <= set(self._pins):
                raise AssertionError("slots and their blocks disagree")


def digest_of(block_hash: bytes, parts: Sequence[memoryview]) -> bytes:
    """XXH3, 128 bits, of a block's name and bytes: it finds damage and mistaken blocks, and is ten times as fast as sha256. Whoever
    may write a slot is trusted."""
    digest = xxhash.xxh3_128(block_hash)
    for part in parts:
        digest.update(part)
    return digest.digest()
