"""Embeddings that the engine holds or fetches, within a budget of embeddings, shared by all sequences that need the same item.

An entry is used by items of requests. One that nobody uses stays until its room is needed, the longest unused first; one that is
still being fetched when its last user goes is given up.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from triptych_common.rpc.errors import TriptychError

from triptych_engine.media.item import Embeddings, EmbeddingSource, FetchOrder, MediaItem
from triptych_engine.scheduling.request import Request

#: Key and number of tokens: a request that is wrong about the number harms none that is right.
_EntryKey = tuple[bytes, int]


@dataclass(slots=True)
class _Entry:
    key: _EntryKey
    order: FetchOrder | None  # while it is being fetched
    embeddings: Embeddings | None = None
    users: dict[MediaItem, Request] = field(default_factory=dict)


class EmbeddingCache:
    """Gives room to items and says what is to be fetched; fetches nothing itself.

    Args:
        capacity_tokens: embeddings held or on their way at once.
    """

    def __init__(self, capacity_tokens: int) -> None:
        self.capacity_tokens = capacity_tokens
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
        """The item's embeddings; None unless the item holds its entry and they have arrived."""
        entry = self._entries.get((item.key, item.num_tokens))
        return entry.embeddings if entry is not None and item in entry.users else None

    def has_room(self, item: MediaItem) -> bool:
        """Whether the item can be held: its entry is there, or unused ones leave room for it."""
        key = (item.key, item.num_tokens)
        unused = sum(num_tokens for _, num_tokens in self._unused)
        return key in self._entries or self.used_tokens - unused + item.num_tokens <= self.capacity_tokens

    def hold(self, item: MediaItem, request: Request) -> bool:
        """Make the item a user of its entry, which is fetched if it is not there; False, and nothing changed, without room."""
        if not self.has_room(item):
            return False
        key = (item.key, item.num_tokens)
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry(key, None)
            self.used_tokens += item.num_tokens
            while self.used_tokens > self.capacity_tokens:
                self._remove(self._entries[next(iter(self._unused))])
            self._order(entry, item)
        else:
            self._unused.pop(key, None)
            item.ask(EmbeddingSource.ENGINE)
            if entry.embeddings is not None:
                item.note_arrival(entry.embeddings.num_bytes)
        entry.users[item] = request
        return True

    def release(self, item: MediaItem) -> None:
        """End the item's use of its entry, if it uses it."""
        entry = self._entries.get((item.key, item.num_tokens))
        if entry is None or entry.users.pop(item, None) is None or entry.users:
            return
        if entry.embeddings is None:
            self._remove(entry)
        else:
            self._unused[entry.key] = None

    def holders(self) -> set[Request]:
        """Requests that hold an entry."""
        return {request for entry in self._entries.values() for request in entry.users.values()}

    def arrive(self, number: int, embeddings: Embeddings) -> list[Request]:
        """Take fetched embeddings; returns the requests that wait for them. Orders that were given up are ignored."""
        entry = self._fetching.pop(number, None)
        if entry is None:
            return []
        entry.order, entry.embeddings = None, embeddings
        for item in entry.users:
            item.note_arrival(embeddings.num_bytes)
        return list(entry.users.values())

    def fail(self, number: int, error: TriptychError) -> list[tuple[Request, TriptychError]]:
        """Note that a fetch failed; returns the requests that fail with it, each with the error that names its item.

        Items of other requests that name another encoder are fetched from there.
        """
        entry = self._fetching.pop(number, None)
        if entry is None or entry.order is None:
            return []
        address, entry.order = entry.order.encoder_id, None
        failed = {item: request for item, request in entry.users.items() if item.encoder_id == address}
        entry.users = {item: request for item, request in entry.users.items() if item not in failed}
        if entry.users:
            self._order(entry, next(iter(entry.users)))
        else:
            self._remove(entry)
        return [(request, _named(error, item)) for item, request in failed.items()]

    def take_orders(self) -> tuple[list[FetchOrder], list[int]]:
        """What is to be fetched, and which earlier orders are not wanted any more, since the last call."""
        orders, self._orders = self._orders, []
        cancelled, self._cancelled = self._cancelled, []
        return orders, cancelled

    def clear_unused(self) -> None:
        """Forget what nobody uses."""
        for key in list(self._unused):
            self._remove(self._entries[key])

    def _order(self, entry: _Entry, item: MediaItem) -> None:
        self._num_orders += 1
        order = FetchOrder(self._num_orders, item.key, item.encoder_id, item.lease_id, item.num_tokens, item.modality)
        item.ask(EmbeddingSource.ENCODER)
        entry.order = order
        self._fetching[order.number] = entry
        self._orders.append(order)

    def _remove(self, entry: _Entry) -> None:
        del self._entries[entry.key]
        self._unused.pop(entry.key, None)
        self.used_tokens -= entry.key[1]
        if entry.order is not None:
            del self._fetching[entry.order.number]
            self._cancelled.append(entry.order.number)

    def check_integrity(self, live: Iterable[Request]) -> None:
        """Raise AssertionError unless entries, users and room agree. For tests."""
        live = set(live)
        if self.used_tokens != sum(num_tokens for _, num_tokens in self._entries):
            raise AssertionError("the room in use is not that of the entries")
        if self.used_tokens > self.capacity_tokens:
            raise AssertionError(f"{self.used_tokens} embeddings are held, {self.capacity_tokens} are allowed")
        if set(self._unused) != {key for key, entry in self._entries.items() if not entry.users}:
            raise AssertionError("the unused entries are not those without users")
        for entry in self._entries.values():
            if (entry.order is None) == (entry.embeddings is None):
                raise AssertionError("an entry must be either fetched or on its way")
            if not set(entry.users.values()) <= live:
                raise AssertionError("a request that ended holds embeddings")
        if {entry.key for entry in self._fetching.values()} != {e.key for e in self._entries.values() if e.order is not None}:
            raise AssertionError("the orders are not those of the entries on their way")


def _named(error: TriptychError, item: MediaItem) -> TriptychError:
    """The same error, saying which item it is about."""
    field_name = f"media[{item.index}]"
    message = error.message if field_name in error.message else f"{field_name}: {error.message}"
    return type(error)(message, field=field_name, limit=error.limit, value=error.value, retry_after_s=error.retry_after_s)
