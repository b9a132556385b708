"""The interface of a store of responses, and what it keeps."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from triptych.errors import InvalidRequestError

#: Longest chain of responses that one request may continue.
MAX_CHAIN = 1000
Clock = Callable[[], float]


@dataclass(frozen=True)
class StoredResponse:
    """One response of /v1/responses."""

    id: str
    #: Only this tenant can see it.
    tenant: str
    #: The response that it continues.
    previous_id: str | None
    #: The answer as JSON.
    response: bytes
    #: A JSON list: the input items of this response, without those of the responses that it continues.
    input_items: bytes
    #: The events of a background response that is streamed, as they were sent. Empty for all others, and until it has ended.
    events: bytes = b""
    #: Until this time a gateway works on it, in seconds since 1970. 0: it has ended.
    live_until_s: float = 0.0

    @property
    def is_live(self) -> bool:
        """Whether it has not ended."""
        return self.live_until_s > 0

    @property
    def num_item_bytes(self) -> int:
        """The size of what a response that continues this one is made from."""
        return len(self.response) + len(self.input_items)

    @property
    def num_bytes(self) -> int:
        """The size of its content."""
        return self.num_item_bytes + len(self.events)


class ResponseReader(ABC):
    """Responses that can be continued.

    A missing, expired or deleted response, and one of another tenant, all look the same: None or False.

    Raises:
        ServiceUnavailableError: each method, if the store cannot be reached.
    """

    async def get(self, tenant: str, response_id: str) -> StoredResponse | None:
        """The response."""
        return next(iter(await self.walk(tenant, response_id, 0)), None)

    @abstractmethod
    async def walk(self, tenant: str, response_id: str, max_bytes: int) -> list[StoredResponse]:
        """The response and those that it continues, newest first, read at once.

        They end where one is missing, after MAX_CHAIN, and with the one that makes their items and answers more than `max_bytes`.
        """


class ResponseStore(ResponseReader):
    """Keeps responses until their time to live is over. It may drop the oldest ones earlier when it is full."""

    @abstractmethod
    async def put(self, record: StoredResponse) -> None:
        """Keep a new response."""

    @abstractmethod
    async def replace(self, record: StoredResponse) -> bool:
        """Replace a response that has not ended. Returns False, and changes nothing, if it has ended or is not there."""

    @abstractmethod
    async def delete(self, tenant: str, response_id: str) -> bool:
        """Delete the response. Returns whether it was there."""

    @abstractmethod
    async def close(self) -> None:
        """Release the connections and files."""


class ConnectionResponses(ResponseReader):
    """The own responses of a WebSocket connection, which are not stored, and behind them those of a store.

    Args:
        max_bytes: size of the own responses; the oldest are dropped first.
    """

    def __init__(self, store: ResponseReader, max_bytes: int) -> None:
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


def walked(get: Callable[[str], StoredResponse | None], response_id: str | None, max_bytes: int) -> list[StoredResponse]:
    """What `ResponseStore.walk` returns, by a function that reads one response."""
    found: list[StoredResponse] = []
    while response_id and len(found) < MAX_CHAIN and max_bytes >= 0 and (record := get(response_id)) is not None:
        found.append(record)
        max_bytes -= record.num_item_bytes
        response_id = record.previous_id
    return found


async def chain(store: ResponseReader, tenant: str, response_id: str, max_bytes: int) -> list[StoredResponse] | None:
    """The response and those that it continues, oldest first. None if one of them is missing, or if there are too many.

    Args:
        max_bytes: most bytes of their items together, because all of them are read into memory.

    Raises:
        InvalidRequestError: they have more bytes.
    """
    found = await store.walk(tenant, response_id, max_bytes)
    num_bytes = sum(record.num_item_bytes for record in found)
    if num_bytes > max_bytes:
        field = "previous_response_id"
        message = f"{field}: the conversation has more than {max_bytes} bytes; send the part that matters as input"
        raise InvalidRequestError(message, field=field, limit=max_bytes, value=num_bytes)
    return found[::-1] if found and found[-1].previous_id is None else None


wall_clock: Clock = time.time
