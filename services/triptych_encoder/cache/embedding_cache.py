"""The embedding cache: bounded in bytes, with leases. It evicts the least recently used items, but never a leased one.

It depends on neither torch nor gRPC. Callers pass the time in seconds, always from the same clock.
"""

from __future__ import annotations

import heapq
import itertools
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar


class Sized(Protocol):
    """A cached item."""

    @property
    def num_bytes(self) -> int: ...


T = TypeVar("T", bound=Sized)


@dataclass
class _Entry(Generic[T]):
    item: T
    lease_ids: set[str] = field(default_factory=set)
    is_doomed: bool = False  # is evicted when its last lease ends


class EmbeddingCache(Generic[T]):
    """Items by key. Not thread-safe.

    Args:
        capacity_bytes: most bytes in the cache; never exceeded.
        on_evict: called with the keys that leave the cache, for any reason.
    """

    def __init__(self, capacity_bytes: int, on_evict: Callable[[Sequence[bytes]], None] = lambda keys: None) -> None:
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self.num_evictions = 0
        self._on_evict = on_evict
        self._entries: OrderedDict[bytes, _Entry[T]] = OrderedDict()  # key -> entry, least recently used first
        self._leases: dict[str, tuple[bytes, float]] = {}  # lease id -> key, when it ends
        self._ends: list[tuple[float, int, str]] = []  # heap of (end, tie-breaker, lease id); also holds leases that have ended
        self._counter = itertools.count()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: bytes) -> bool:
        return key in self._entries

    @property
    def num_leases(self) -> int:
        return len(self._leases)

    @property
    def leased_bytes(self) -> int:
        return sum(entry.item.num_bytes for entry in self._entries.values() if entry.lease_ids)

    def peek(self, key: bytes) -> T | None:
        """The item. Does not mark it as used."""
        entry = self._entries.get(key)
        return entry.item if entry else None

    def use(self, key: bytes) -> T | None:
        """The item. Marks it as the most recently used one."""
        if key not in self._entries:
            return None
        self._entries.move_to_end(key)
        return self._entries[key].item

    def put(self, key: bytes, item: T) -> bool:
        """Keep an item and evict others as needed. Returns False and changes nothing if leased items leave too little space."""
        if key in self._entries:
            self._entries.move_to_end(key)
            self._entries[key].is_doomed = False
            return True
        free = self.capacity_bytes - self.used_bytes
        victims = []
        for candidate, entry in self._entries.items():
            if free >= item.num_bytes:
                break
            if not entry.lease_ids:
                victims.append(candidate)
                free += entry.item.num_bytes
        if free < item.num_bytes:
            return False
        self._remove(victims)
        self._entries[key] = _Entry(item)
        self.used_bytes += item.num_bytes
        return True

    def lease(self, key: bytes, ends_at: float) -> str:
        """Keep the item until the lease ends. Returns the lease's id. Raises KeyError if the cache does not hold the key."""
        entry = self._entries[key]
        lease_id = secrets.token_hex(16)
        entry.lease_ids.add(lease_id)
        self._leases[lease_id] = (key, ends_at)
        heapq.heappush(self._ends, (ends_at, next(self._counter), lease_id))
        return lease_id

    def release(self, lease_id: str) -> bool:
        """End a lease. Returns whether it was alive."""
        lease = self._leases.pop(lease_id, None)
        if lease is None:
            return False
        key = lease[0]
        entry = self._entries[key]
        entry.lease_ids.discard(lease_id)
        if entry.is_doomed and not entry.lease_ids:
            self._remove([key])
        # Released leases stay in the heap until they would have ended. Rebuild the heap when too many were released early.
        if len(self._ends) > 2 * len(self._leases) + 64:
            self._ends = [end for end in self._ends if end[2] in self._leases]
            heapq.heapify(self._ends)
        return True

    def renew(self, lease_id: str, ends_at: float) -> bool:
        """Change the end of a lease. Returns whether the lease was alive."""
        lease = self._leases.get(lease_id)
        if lease is None:
            return False
        self._leases[lease_id] = (lease[0], ends_at)
        heapq.heappush(self._ends, (ends_at, next(self._counter), lease_id))
        return True

    def expire(self, now: float) -> int:
        """End the leases whose time is over. Returns their number."""
        num_ended = 0
        while self._ends and self._ends[0][0] <= now:
            lease_id = heapq.heappop(self._ends)[2]
            # A renewed lease still has an entry with its former end.
            if lease_id in self._leases and self._leases[lease_id][1] <= now:
                num_ended += self.release(lease_id)
        return num_ended

    def evict(self, keys: Iterable[bytes] | None = None) -> int:
        """Evict keys, or everything. Leased items go when their last lease ends. Returns how many items were evicted now."""
        named = [key for key in dict.fromkeys(keys) if key in self._entries] if keys is not None else list(self._entries)
        for key in named:
            self._entries[key].is_doomed = True
        gone = [key for key in named if not self._entries[key].lease_ids]
        self._remove(gone)
        return len(gone)

    def _remove(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            self.used_bytes -= self._entries.pop(key).item.num_bytes
        self.num_evictions += len(keys)
        if keys:
            self._on_evict(keys)

    def check_integrity(self) -> None:
        """Raise AssertionError if the counts do not match the items. For tests."""
        held = sum(entry.item.num_bytes for entry in self._entries.values())
        if held != self.used_bytes or held > self.capacity_bytes:
            raise AssertionError(f"{held} bytes are held, {self.used_bytes} are booked, {self.capacity_bytes} may be")
        for key, entry in self._entries.items():
            if entry.is_doomed and not entry.lease_ids:
                raise AssertionError(f"{key.hex()} is doomed and has no lease, yet stays")
            if any(self._leases.get(lease_id, (None,))[0] != key for lease_id in entry.lease_ids):
                raise AssertionError(f"{key.hex()} has a lease that is not booked")
        if sum(len(entry.lease_ids) for entry in self._entries.values()) != len(self._leases):
            raise AssertionError("a lease belongs to no entry")
        if not {lease_id for _, _, lease_id in self._ends} >= set(self._leases):
            raise AssertionError("a lease would never end")
