"""The interface of a store of responses, and what it keeps."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Protocol

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
    def num_bytes(self) -> int:
        """The size of its content."""
        return len(self.response) + len(self.input_items) + len(self.events)


class ResponseStore(Protocol):
    """Keeps responses until their time to live is over. It may drop the oldest ones earlier when it is full.

    A missing, expired or deleted response, and one of another tenant, all look the same: None or False.

    Raises:
        ServiceUnavailableError: each method, if the store cannot be reached.
    """

    async def put(self, record: StoredResponse) -> None:
        """Keep a new response."""
        ...

    async def replace(self, record: StoredResponse) -> bool:
        """Replace a response that has not ended. Returns False, and changes nothing, if it has ended or is not there."""
        ...

    async def get(self, tenant: str, response_id: str) -> StoredResponse | None:
        """The response."""
        ...

    async def delete(self, tenant: str, response_id: str) -> bool:
        """Delete the response. Returns whether it was there."""
        ...

    async def close(self) -> None:
        """Release the connections and files."""
        ...


async def walk(store: ResponseStore, tenant: str, response_id: str) -> AsyncIterator[StoredResponse]:
    """The response and those that it continues, newest first, as far as they are there. At most MAX_CHAIN."""
    next_id: str | None = response_id
    for _ in range(MAX_CHAIN):
        record = await store.get(tenant, next_id) if next_id is not None else None
        if record is None:
            return
        yield record
        next_id = record.previous_id


async def chain(store: ResponseStore, tenant: str, response_id: str, max_bytes: int) -> list[StoredResponse] | None:
    """The response and those that it continues, oldest first. None if one of them is missing, or if there are too many.

    Args:
        max_bytes: most bytes of their items together, because all of them are read into memory.

    Raises:
        InvalidRequestError: they have more bytes.
    """
    num_bytes = 0
    found: list[StoredResponse] = []
    async for record in walk(store, tenant, response_id):
        num_bytes += len(record.input_items) + len(record.response)
        if num_bytes > max_bytes:
            field = "previous_response_id"
            message = f"{field}: the conversation has more than {max_bytes} bytes; send the part that matters as input"
            raise InvalidRequestError(message, field=field, limit=max_bytes, value=num_bytes)
        found.append(record)
    return found[::-1] if found and found[-1].previous_id is None else None


wall_clock: Clock = time.time
