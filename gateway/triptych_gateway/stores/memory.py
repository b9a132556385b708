"""Responses in the memory of this process. They are lost when it ends."""

from __future__ import annotations

from collections import Counter, OrderedDict
from functools import partial

from triptych_gateway.stores.store import Clock, ResponseStore, StoredResponse, walked, wall_clock


class MemoryStore(ResponseStore):
    """A store in memory.

    Args:
        ttl_s: how long a response is kept after it was put.
        max_bytes: size of all responses. When it is full, the tenant that keeps most loses its oldest.
    """

    def __init__(self, ttl_s: float, max_bytes: int, clock: Clock = wall_clock) -> None:
        self._ttl_s, self._max_bytes, self._clock = ttl_s, max_bytes, clock
        #: id -> (record, when it expires), oldest first
        self._records: OrderedDict[str, tuple[StoredResponse, float]] = OrderedDict()
        #: tenant -> ids of its responses, oldest first, and their size
        self._ids: dict[str, OrderedDict[str, None]] = {}
        self._num_bytes: Counter[str] = Counter()

    async def put(self, record: StoredResponse) -> None:
        self._drop(record.id)
        self._records[record.id] = record, self._clock() + self._ttl_s
        self._ids.setdefault(record.tenant, OrderedDict())[record.id] = None
        self._num_bytes[record.tenant] += record.num_bytes
        self._make_room()

    async def replace(self, record: StoredResponse) -> bool:
        entry = self._records.get(record.id)
        if entry is None or entry[0].tenant != record.tenant or not entry[0].is_live:
            return False
        self._records[record.id] = record, entry[1]
        self._num_bytes[record.tenant] += record.num_bytes - entry[0].num_bytes
        self._make_room()
        return True

    async def walk(self, tenant: str, response_id: str, max_bytes: int) -> list[StoredResponse]:
        return walked(partial(self._get, tenant), response_id, max_bytes)

    def _get(self, tenant: str, response_id: str) -> StoredResponse | None:
        entry = self._records.get(response_id)
        if entry is None or entry[0].tenant != tenant or entry[1] <= self._clock():
            return None
        return entry[0]

    async def delete(self, tenant: str, response_id: str) -> bool:
        found = self._get(tenant, response_id) is not None
        if found:
            self._drop(response_id)
        return found

    async def close(self) -> None:
        self._records.clear()
        self._ids.clear()
        self._num_bytes.clear()

    def _make_room(self) -> None:
        now = self._clock()
        while self._records:
            oldest, (_, expires_s) = next(iter(self._records.items()))
            if expires_s > now:
                break
            self._drop(oldest)
        while self._num_bytes.total() > self._max_bytes:
            most = max(self._num_bytes, key=self._num_bytes.__getitem__)
            self._drop(next(iter(self._ids[most])))

    def _drop(self, response_id: str) -> None:
        entry = self._records.pop(response_id, None)
        if entry is None:
            return
        tenant = entry[0].tenant
        self._num_bytes[tenant] -= entry[0].num_bytes
        del self._ids[tenant][response_id]
        if not self._ids[tenant]:
            del self._ids[tenant], self._num_bytes[tenant]
