"""The state of one WebSocket connection: responses that are not stored can be continued on it."""

from __future__ import annotations

from collections import OrderedDict

from triptych_gateway.stores.store import MAX_CHAIN, ResponseStore, StoredResponse


class ConnectionStore(ResponseStore):
    """Reads a store, and before it the connection's own responses, which end with it. Writing goes to the store.

    Args:
        max_bytes: size of the own responses; the oldest are dropped first.
    """

    def __init__(self, store: ResponseStore, max_bytes: int) -> None:
        self._store, self._max_bytes = store, max_bytes
        self._own: OrderedDict[str, StoredResponse] = OrderedDict()

    def remember(self, record: StoredResponse) -> None:
        """Keep a response for this connection."""
        self._own[record.id] = record
        while len(self._own) > 1 and sum(one.num_bytes for one in self._own.values()) > self._max_bytes:
            self._own.popitem(last=False)

    def forget(self, response_id: str) -> None:
        """Drop a response of this connection, because a turn that continued it has failed. The client then starts afresh."""
        self._own.pop(response_id, None)

    async def walk(self, tenant: str, response_id: str, max_bytes: int) -> list[StoredResponse]:
        found: list[StoredResponse] = []
        next_id: str | None = response_id
        while next_id is not None and max_bytes >= 0 and len(found) < MAX_CHAIN:
            own = self._own.get(next_id)
            # The connection's key may have changed its tenant.
            is_own = own is not None and own.tenant == tenant
            further = [own] if own is not None and is_own else await self._store.walk(tenant, next_id, max_bytes)
            if not further:
                break
            found += further
            max_bytes -= sum(record.num_item_bytes for record in further)
            next_id = further[-1].previous_id
        return found[:MAX_CHAIN]

    async def put(self, record: StoredResponse) -> None:
        await self._store.put(record)

    async def replace(self, record: StoredResponse) -> bool:
        return await self._store.replace(record)

    async def delete(self, tenant: str, response_id: str) -> bool:
        return await self._store.delete(tenant, response_id)

    async def close(self) -> None:
        self._own.clear()
