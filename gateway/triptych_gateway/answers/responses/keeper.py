"""Reads the responses that a request continues, and keeps its own."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Container, Coroutine
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

import orjson
from triptych.errors import InvalidRequestError, TriptychError

from triptych_gateway.dialects.responses.context import Context, history_of, read_items
from triptych_gateway.dialects.responses.encoder import ResponsesEncoder
from triptych_gateway.dialects.responses.ids import new_response_id, response_of_item
from triptych_gateway.dialects.responses.resource import failed
from triptych_gateway.errors import ApiError, NotFoundError, PreviousResponseNotFoundError, to_api_error
from triptych_gateway.file_parts import FileParts, run_sized
from triptych_gateway.schemas.responses.items import Input
from triptych_gateway.schemas.responses.request import ResponseRequest
from triptych_gateway.stores.store import MAX_CHAIN, Clock, ResponseStore, StoredResponse, chain, wall_clock

log = logging.getLogger(__name__)
_LOST = ApiError(500, "the gateway that worked on this response is gone", "server_error")


@dataclass(frozen=True)
class Turn:
    """One request, with what it continues."""

    tenant: str
    context: Context
    previous_id: str | None
    #: Whether the response will be kept.
    is_stored: bool
    #: The own input items as JSON.
    input_items: bytes

    def record(self, resource: dict[str, Any], events: bytes = b"", live_until_s: float = 0.0) -> StoredResponse:
        """What is kept of it."""
        return StoredResponse(
            self.context.response_id,
            self.tenant,
            self.previous_id,
            orjson.dumps(resource),
            self.input_items,
            events,
            live_until_s,
        )


class Keeper:
    """Reads and writes a store for the requests of /v1/responses.

    Args:
        max_bytes: largest input, and largest log of events, that is kept.
        max_chain_bytes: largest conversation that a request continues.
    """

    def __init__(self, store: ResponseStore, max_bytes: int, max_chain_bytes: int, clock: Clock = wall_clock) -> None:
        self.store = store
        self.max_bytes = max_bytes
        self._max_chain_bytes = max_chain_bytes
        self._clock = clock
        #: Ids of the responses that this gateway works on now.
        self.own_live: Container[str] = ()

    async def begin(self, tenant: str, body: ResponseRequest, files: FileParts, store: ResponseStore | None = None) -> Turn:
        """Find all that the request continues.

        Args:
            files: files that were cut out of the body. They are stored with the items, and stay in `files`.
            store: where earlier responses are looked up, instead of the keeper's own store.

        Raises:
            NotFoundError: an earlier response or an item is not there, has expired, or is of another tenant.
            InvalidRequestError: an earlier response has not ended, or the input is too large to be stored.
        """
        turn = await self.read(tenant, body.input, body.previous_response_id, store)
        if body.store is False:
            return turn
        turn = replace(turn, input_items=files.restored(turn.input_items))
        if len(turn.input_items) > self.max_bytes:
            if body.store or body.background:
                message = f"store: the input has {len(turn.input_items)} bytes; at most {self.max_bytes} are stored"
                raise InvalidRequestError(message, field="store", limit=self.max_bytes, value=len(turn.input_items))
            return turn
        return replace(turn, is_stored=True)

    async def read(self, tenant: str, given: Input | None, previous_id: str | None, store: ResponseStore | None = None) -> Turn:
        """The items of a request that is not stored. Arguments and errors are those of `begin`."""
        store = store or self.store
        response_id = new_response_id()
        earlier: list[StoredResponse] = []
        if previous_id is not None:
            found = await chain(store, tenant, previous_id, self._max_chain_bytes)
            if found is None:
                message = f"no response {previous_id[:64]!r}, or one that it continues is gone"
                raise PreviousResponseNotFoundError(message, field="previous_response_id")
            if found[-1].is_live:
                field = "previous_response_id"
                raise InvalidRequestError(f"{field}: the response {previous_id[:64]!r} has not ended", field=field)
            earlier = found

        async def lookup(item_id: str) -> dict[str, Any]:
            return await self._item(store, tenant, item_id)

        items, written = await read_items(given, response_id, lookup)
        parts = [(record.input_items, record.response) for record in earlier]
        history = await run_sized(sum(len(items) + len(response) for items, response in parts), lambda: history_of(parts))
        return Turn(tenant, Context(response_id, items, history), previous_id, False, orjson.dumps(written))

    async def get(self, tenant: str, response_id: str) -> StoredResponse:
        """A stored response. One whose gateway died while it worked on it has failed.

        Raises:
            NotFoundError: it is not there.
        """
        record = await self.store.get(tenant, response_id)
        if record is None:
            raise NotFoundError(f"no response {response_id[:64]!r}", field="response_id")
        # The wall clock may have jumped, so that it decides only about responses of other gateways.
        if record.is_live and record.live_until_s < self._clock() and record.id not in self.own_live:
            record = ended_record(record, failed(orjson.loads(record.response), _LOST))
            await self.store.replace(record)
        return record

    async def input_items(self, tenant: str, response_id: str) -> list[dict[str, Any]]:
        """All items that a stored response was made from, oldest first: those of the responses that it continues, and its own.

        Of a conversation whose beginning is gone, these are the items that are left. Raises NotFoundError if the response is gone.
        """
        record = await self.get(tenant, response_id)
        items: list[dict[str, Any]] = orjson.loads(record.input_items)
        next_id, num_left = record.previous_id, MAX_CHAIN
        while next_id is not None and num_left > 0:
            # In parts, because all of it may be more than a server should send at once.
            found = (await self.store.walk(tenant, next_id, self._max_chain_bytes))[:num_left]
            for earlier in found:
                items[:0] = orjson.loads(earlier.input_items) + orjson.loads(earlier.response)["output"]
            num_left -= len(found)
            next_id = found[-1].previous_id if found else None
        return items

    async def keep(self, turn: Turn, encoder: ResponsesEncoder) -> None:
        """Store a response that has ended, if it shall be stored. If that is not possible, the response says that it is not."""
        if not turn.is_stored:
            return
        try:
            await self.store.put(turn.record(encoder.resource))
        except TriptychError as error:
            log.warning("a response could not be stored: %s", error)
            encoder.resource["store"] = False

    async def _item(self, store: ResponseStore, tenant: str, item_id: str) -> dict[str, Any]:
        response_id = response_of_item(item_id)
        record = await store.get(tenant, response_id) if response_id is not None else None
        if record is not None:
            for item in orjson.loads(record.input_items) + orjson.loads(record.response)["output"]:
                if item.get("id") == item_id:
                    found: dict[str, Any] = item
                    return found
        raise NotFoundError(f"no item {item_id[:64]!r} in a stored response", field="input")


def ended_record(record: StoredResponse, resource: dict[str, Any]) -> StoredResponse:
    """The record of a live response that ends with this response object."""
    return replace(record, response=orjson.dumps(resource), live_until_s=0.0)


async def kept_events(
    events: AsyncGenerator[bytes, None], turn: Turn, encoder: ResponsesEncoder, keeper: Keeper
) -> AsyncGenerator[bytes, None]:
    """The events of a response. It is stored before its last event is sent, so that a client can use it as soon as it has ended.

    Until then `store` says what shall be done, as in OpenAI's API. The last event says what was done: to continue a response that
    was not stored, a client sends its items again.
    """
    is_started = False
    try:
        async with aclosing(events):
            async for written in events:
                if encoder.is_finished:
                    await keeper.keep(turn, encoder)
                    if encoder.resource["store"] != turn.is_stored:
                        written = encoder.restated(written)
                is_started = True
                yield written
    except Exception as error:
        # Without a first event, the error becomes an HTTP status, and there is no response.
        if is_started and not encoder.is_finished:
            # The stream writes the failure afterwards, with what `keep` has found out.
            encoder.fail(to_api_error(error))
            await keeper.keep(turn, encoder)
        raise


async def kept_whole(work: Coroutine[Any, Any, bytes], turn: Turn, encoder: ResponsesEncoder, keeper: Keeper) -> bytes:
    """The response as JSON. It is stored before it is sent."""
    answer = await work
    await keeper.keep(turn, encoder)
    return answer if encoder.resource["store"] == turn.is_stored else orjson.dumps(encoder.resource)
