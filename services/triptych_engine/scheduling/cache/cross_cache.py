"""Gives requests slots for the keys and values of their encoder's states, for cross-attention: a group beside the blocks.

A slot is filled in the first step of its request, for all layers, and does not change afterwards. Then requests with the same item
share it: further choices, a transcript after its language was detected, a request that comes back after a preemption. A slot that
nobody uses keeps what it holds until it is needed; the one that was not used for the longest time goes first.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection

from triptych_engine.scheduling.request import Request


class CrossCache:
    """The slots of requests. `KVCacheManager` owns it.

    Args:
        num_slots: at least one.
    """

    def __init__(self, num_slots: int) -> None:
        if num_slots < 1:
            raise ValueError(f"a cache of encoder states needs at least one slot, not {num_slots}")
        self.num_slots = num_slots
        self._empty = list(range(num_slots))
        self._num_users: dict[int, int] = {}  # of slots that are in use
        self._slot_of: dict[bytes, int] = {}  # identity of an item -> the slot that holds it
        self._held: dict[int, bytes] = {}  # the reverse
        self._unused: OrderedDict[int, None] = OrderedDict()  # slots that hold an item and have no user, the oldest first

    @property
    def num_free(self) -> int:
        """How many slots nobody uses."""
        return len(self._empty) + len(self._unused)

    def has_room(self, *requests: Request) -> bool:
        """Whether all of these can be admitted."""
        return self.num_free >= len(requests) or all(self._slot_of.get(_identity(one)) in self._num_users for one in requests)

    def allocate(self, request: Request) -> None:
        """Give a request a slot; there must be room. Sets `cross_slot` and `fills_cross_slot`."""
        slot = self._slot_of.get(_identity(request))
        request.fills_cross_slot = slot is None
        if slot is None:
            slot = self._take()
        self._unused.pop(slot, None)
        self._num_users[slot] = self._num_users.get(slot, 0) + 1
        request.cross_slot = slot

    def _take(self) -> int:
        if self._empty:
            return self._empty.pop()
        if not self._unused:
            raise AssertionError("there is no slot for the encoder's states of a request")
        slot, _ = self._unused.popitem(last=False)
        del self._slot_of[self._held.pop(slot)]
        return slot

    def commit(self, request: Request) -> None:
        """A request has computed tokens, so its slot is filled. Others can share it, unless another slot holds the same."""
        if request.fills_cross_slot and request.cross_slot is not None:
            request.fills_cross_slot = False
            if self._slot_of.setdefault(_identity(request), request.cross_slot) == request.cross_slot:
                self._held[request.cross_slot] = _identity(request)

    def release(self, request: Request) -> None:
        """Take back a request's slot, which keeps what it holds."""
        slot = request.cross_slot
        if slot is None:
            return
        request.cross_slot, request.fills_cross_slot = None, False
        self._num_users[slot] -= 1
        if not self._num_users[slot]:
            del self._num_users[slot]
            if slot in self._held:
                self._unused[slot] = None
            else:
                self._empty.append(slot)

    def reset(self) -> None:
        """Forget what slots hold."""
        self._empty += self._unused
        self._unused.clear()
        self._slot_of.clear()
        self._held.clear()

    def check_integrity(self, requests: Collection[Request]) -> None:
        """Raise AssertionError unless the slots agree with what the requests hold. For tests."""
        if Counter(one.cross_slot for one in requests if one.cross_slot is not None) != self._num_users:
            raise AssertionError("the users of slots are not those that are counted")
        if sorted([*self._num_users, *self._empty, *self._unused]) != list(range(self.num_slots)):
            raise AssertionError("slots of encoder states are lost or used twice")
        if {slot: item for item, slot in self._slot_of.items()} != self._held or not self._unused.keys() <= self._held.keys():
            raise AssertionError("the index of slots and what they hold disagree")


def _identity(request: Request) -> bytes:
    return request.media.identity_beside
