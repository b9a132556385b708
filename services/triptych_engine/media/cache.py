"""The embedding cache: the embeddings that the engine holds or fetches, within a budget. Requests for the same item share an entry.

An item *uses* its entry until all its tokens are computed. After that it *keeps* the entry until its request ends: a preempted
request is computed again, and by then the encoder may no longer have the embeddings. Entries that are only kept do not count
against the budget. They have a separate limit, because a preempted request holds no KV cache slots, so many such requests can wait.
Entries beyond the limit are not kept; they are fetched again.

An entry without users and keepers stays until its room is needed; the least recently used entry is evicted first. A fetch is
cancelled when its last user is removed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Set
from dataclasses import dataclass, field

from triptych.errors import TriptychError

from triptych_engine.media.item import Embeddings, EmbeddingSource, FetchOrder, MediaItem

#: Key and number of tokens. A request with a wrong number gets its own entry, so it does not affect requests with the right one.
_EntryKey = tuple[bytes, int]


@dataclass(slots=True)
class _Entry:
    key: _EntryKey
    order: FetchOrder | None = None  # set while it is being fetched
    embeddings: Embeddings | None = None
    users: dict[MediaItem, str] = field(default_factory=dict)  # item -> request_id
    keepers: dict[MediaItem, str] = field(default_factory=dict)  # item -> request_id
    is_counted: bool = False  # against the budget
    is_kept: bool = False  # has keepers


class EmbeddingCache:
    """Manages the embedding budget and decides what to fetch. It fetches nothing itself.

    Args:
        capacity_tokens: maximum number of embeddings that are held or being fetched, without those that are only kept.
        max_kept_tokens: maximum number of embeddings that are kept.
    """

    def __init__(self, capacity_tokens: int, max_kept_tokens: int) -> None:
        self.capacity_tokens = capacity_tokens
        self.max_kept_tokens = max_kept_tokens
        self.kept_tokens = 0
        self.used_tokens = 0
        self._entries: dict[_EntryKey, _Entry] = {}
        self._unused: OrderedDict[_EntryKey, None] = OrderedDict()  # least recently used first
        self._fetching: dict[int, _Entry] = {}  # number of an order -> its entry
        self._orders: list[FetchOrder] = []
        self._cancelled: list[int] = []
        self._num_orders = 0

    @property
    def num_fetching(self) -> int:
        """Entries that are being encoded or fetched."""
        return len(self._fetching)

    def embeddings(self, item: MediaItem) -> Embeddings | None:
        """The item's embeddings; None unless the item uses its entry and they have arrived."""
        entry = self._entries.get((item.key, item.num_tokens))
        return entry.embeddings if entry is not None and item in entry.users else None

    def has(self, item: MediaItem) -> bool:
        """Whether the item uses or keeps its entry, and the embeddings have arrived."""
        entry = self._entries.get((item.key, item.num_tokens))
        return entry is not None and entry.embeddings is not None and (item in entry.users or item in entry.keepers)

    def has_room(self, item: MediaItem) -> bool:
        """Whether the item can use its entry: the entry already counts, or evicting unused entries makes room for it."""
        entry = self._entries.get((item.key, item.num_tokens))
        if entry is not None and entry.is_counted:
            return True
        unused = sum(num_tokens for _, num_tokens in self._unused)
        return self.used_tokens - unused + item.num_tokens <= self.capacity_tokens

    def hold(self, item: MediaItem, request_id: str) -> bool:
        """Make the item a user of its entry. A new entry is fetched. Returns False, and changes nothing, if there is no room."""
        if not self.has_room(item):
            return False
        key = (item.key, item.num_tokens)
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry(key)
            self._order(entry, item)
        else:
            item.ask(EmbeddingSource.ENGINE)
            if entry.embeddings is not None:
                item.note_arrival(entry.embeddings.num_bytes)
        entry.keepers.pop(item, None)
        entry.users[item] = request_id
        self._settle(entry)
        return True

    def keep(self, item: MediaItem, request_id: str) -> bool:
        """Make the item a keeper of its entry instead of a user. Returns False, and changes nothing, if the embeddings have not
        arrived or the limit on kept embeddings is reached."""
        entry = self._entries.get((item.key, item.num_tokens))
        if entry is None or entry.embeddings is None:
            return False
        if not entry.is_kept and self.kept_tokens + item.num_tokens > self.max_kept_tokens:
            return False
        entry.users.pop(item, None)
        entry.keepers[item] = request_id
        self._settle(entry)
        return True

    def release(self, item: MediaItem) -> None:
        """Remove the item from the users and keepers of its entry."""
        entry = self._entries.get((item.key, item.num_tokens))
        if entry is None or (item not in entry.users and item not in entry.keepers):
            return
        entry.users.pop(item, None)
        entry.keepers.pop(item, None)
        self._settle(entry)

    def user_ids(self) -> set[str]:
        """The ids of requests that use an entry."""
        return {request_id for entry in self._entries.values() for request_id in entry.users.values()}

    def owner_ids(self) -> set[str]:
        """The ids of requests that use or keep an entry."""
        return self.user_ids() | {request_id for entry in self._entries.values() for request_id in entry.keepers.values()}

    def waiting_ids(self, number: int) -> list[str]:
        """The ids of requests that wait for a fetch order."""
        entry = self._fetching.get(number)
        return [] if entry is None else list(entry.users.values())

    def arrive(self, number: int, embeddings: Embeddings) -> list[str]:
        """Store fetched embeddings; returns the ids of requests that wait for them. Cancelled orders are ignored."""
        entry = self._fetching.pop(number, None)
        if entry is None:
            return []
        entry.order, entry.embeddings = None, embeddings
        for item in entry.users:
            item.note_arrival(embeddings.num_bytes)
        return list(entry.users.values())

    def fail(self, number: int, error: TriptychError) -> list[tuple[str, TriptychError]]:
        """Record a failed fetch. Returns the ids of the requests that fail with it, each with an error that names its item.

        If the entry has other users, whose items name another encoder, the embeddings are fetched from that encoder.
        """
        entry = self._fetching.pop(number, None)
        if entry is None or entry.order is None:
            return []
        address, entry.order = entry.order.encoder_id, None
        failed = {item: request_id for item, request_id in entry.users.items() if item.encoder_id == address}
        entry.users = {item: request_id for item, request_id in entry.users.items() if item not in failed}
        if entry.users:
            self._order(entry, next(iter(entry.users)))
        self._settle(entry)
        return [(request_id, _named(error, item)) for item, request_id in failed.items()]

    def take_orders(self) -> tuple[list[FetchOrder], list[int]]:
        """New orders since the last call, and the numbers of earlier orders to cancel."""
        orders, self._orders = self._orders, []
        cancelled, self._cancelled = self._cancelled, []
        return orders, cancelled

    def clear_unused(self) -> None:
        """Remove the entries without users and keepers."""
        for key in list(self._unused):
            self._remove(self._entries[key])

    def _order(self, entry: _Entry, item: MediaItem) -> None:
        self._num_orders += 1
        order = FetchOrder(self._num_orders, item.key, item.encoder_id, item.lease_id, item.num_tokens, item.modality, item.trace)
        item.ask(EmbeddingSource.ENCODER)
        entry.order = order
        self._fetching[order.number] = entry
        self._orders.append(order)

    def _settle(self, entry: _Entry) -> None:
        """Update all counts after the users or keepers of an entry have changed, and evict unused entries beyond the budget."""
        self._count(entry, is_counted=bool(entry.users) or not entry.keepers)
        if entry.is_kept != bool(entry.keepers):
            entry.is_kept = not entry.is_kept
            self.kept_tokens += entry.key[1] if entry.is_kept else -entry.key[1]
        if entry.users or entry.keepers:
            self._unused.pop(entry.key, None)
        elif entry.embeddings is None:
            self._remove(entry)
        else:
            self._unused[entry.key] = None
        while self.used_tokens > self.capacity_tokens:
            self._remove(self._entries[next(iter(self._unused))])

    def _count(self, entry: _Entry, *, is_counted: bool) -> None:
        if is_counted != entry.is_counted:
            self.used_tokens += entry.key[1] if is_counted else -entry.key[1]
            entry.is_counted = is_counted

    def _remove(self, entry: _Entry) -> None:
        del self._entries[entry.key]
        self._unused.pop(entry.key, None)
        self._count(entry, is_counted=False)
        if entry.order is not None:
            del self._fetching[entry.order.number]
            self._cancelled.append(entry.order.number)

    def check_integrity(self, live_ids: Set[str]) -> None:
        """Raise AssertionError unless entries, users and room agree. For tests."""
        if self.used_tokens != sum(num_tokens for (_, num_tokens), entry in self._entries.items() if entry.is_counted):
            raise AssertionError("the room in use is not that of the entries")
        if self.kept_tokens != sum(num_tokens for (_, num_tokens), entry in self._entries.items() if entry.keepers):
            raise AssertionError("the embeddings that are kept are not those of the entries")
        if self.kept_tokens > self.max_kept_tokens:
            raise AssertionError(f"{self.kept_tokens} embeddings are kept, {self.max_kept_tokens} may be")
        if self.used_tokens > self.capacity_tokens:
            raise AssertionError(f"{self.used_tokens} embeddings are held, {self.capacity_tokens} are allowed")
        if set(self._unused) != {key for key, entry in self._entries.items() if not entry.users and not entry.keepers}:
            raise AssertionError("the unused entries are not those without users and keepers")
        for entry in self._entries.values():
            if (entry.order is None) == (entry.embeddings is None):
                raise AssertionError("an entry must be either there or being fetched")
            if entry.is_counted != (bool(entry.users) or not entry.keepers):
                raise AssertionError("an entry counts against the budget unless it is only kept")
            if entry.users.keys() & entry.keepers.keys():
                raise AssertionError("an item both uses and keeps its entry")
        if not self.owner_ids() <= live_ids:
            raise AssertionError("a request that ended holds embeddings")
        if {entry.key for entry in self._fetching.values()} != {e.key for e in self._entries.values() if e.order is not None}:
            raise AssertionError("the orders are not those of the entries that are being fetched")


def _named(error: TriptychError, item: MediaItem) -> TriptychError:
    """The same error, naming the item."""
    field_name = f"media[{item.index}]"
    message = error.message if field_name in error.message else f"{field_name}: {error.message}"
    return type(error)(message, field=field_name, limit=error.limit, value=error.value, retry_after_s=error.retry_after_s)
