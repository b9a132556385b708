"""Slots for the recurrent states of hybrid models: one for each running request, the others for snapshots.

A recurrent layer keeps one state per sequence, not something for each token, and the state cannot be cut back. So a cached prefix
can be used only where a snapshot of the state after it was kept. Snapshots are found by the hash of the prefix' last block; the
one that was not used for the longest time is dropped first. Copies from and to slots are made in the order in which they are
planned, so a slot that was copied from can be taken again at once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable


class StatePool:
    """Which slots are taken, and which hold a snapshot, over slots 0..num_slots-1."""

    def __init__(self, num_slots: int) -> None:
        if num_slots < 1:
            raise ValueError(f"a state pool needs at least one slot, not {num_slots}")
        self.num_slots = num_slots
        self._empty = list(range(num_slots))
        self._hash_of: OrderedDict[int, bytes] = OrderedDict()  # slot -> the prefix of its snapshot; least recently used first
        self._slot_of: dict[bytes, int] = {}

    @property
    def num_free(self) -> int:
        """How many can be taken, if snapshots are dropped."""
        return len(self._empty) + len(self._hash_of)

    def __contains__(self, prefix: bytes | None) -> bool:
        return prefix in self._slot_of

    def use(self, prefix: bytes) -> int:
        """The slot of a snapshot that is there. It becomes the most recently used one."""
        slot = self._slot_of[prefix]
        self._hash_of.move_to_end(slot)
        return slot

    def take(self) -> int | None:
        """A slot, if need be that of the snapshot that was not used for the longest time. None if all are taken."""
        if self._empty:
            return self._empty.pop()
        if not self._hash_of:
            return None
        slot, prefix = self._hash_of.popitem(last=False)
        del self._slot_of[prefix]
        return slot

    def give_back(self, slot: int) -> None:
        """A slot that was taken is empty again."""
        self._empty.append(slot)

    def keep(self, slot: int, prefix: bytes) -> bool:
        """A slot that was taken holds the snapshot of a prefix. If there is one already, the slot is empty. Returns whether it is
        new."""
        if prefix in self._slot_of:
            self.give_back(slot)
            return False
        self._hash_of[slot] = prefix
        self._slot_of[prefix] = slot
        return True

    def drop(self, prefix: bytes) -> None:
        """Drop a snapshot, if it is still there."""
        if (slot := self._slot_of.pop(prefix, None)) is not None:
            del self._hash_of[slot]
            self.give_back(slot)

    def drop_first(self, prefix: bytes) -> None:
        """Of all snapshots, drop this one first, if it is still there."""
        if (slot := self._slot_of.get(prefix)) is not None:
            self._hash_of.move_to_end(slot, last=False)

    def reset(self) -> None:
        """Drop all snapshots."""
        self._empty += self._hash_of
        self._hash_of.clear()
        self._slot_of.clear()

    def check_integrity(self, taken: Iterable[int]) -> None:
        """Raise AssertionError unless each slot is taken, empty or a snapshot, and the index agrees."""
        slots = [*taken, *self._empty, *self._hash_of]
        if sorted(slots) != list(range(self.num_slots)):
            raise AssertionError(f"slots are lost or used twice: {sorted(slots)}")
        if {slot: prefix for prefix, slot in self._slot_of.items()} != self._hash_of:
            raise AssertionError("the index of snapshots and the slots disagree")
