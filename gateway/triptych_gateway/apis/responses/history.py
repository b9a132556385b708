"""What a request continues: finds the responses before it, and stores its own."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Container, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

import orjson
from triptych.errors import InvalidRequestError, TriptychError

from triptych_gateway.apis.responses.events import ResponseWriter
from triptych_gateway.apis.responses.items import STORED_ITEMS, AnyItem, Input, ItemReference
from triptych_gateway.apis.responses.opaque import input_item_id, new_response_id, response_of_item
from triptych_gateway.apis.responses.resource import failed
from triptych_gateway.apis.responses.schema import ResponseRequest
from triptych_gateway.file_parts import FileParts, run_sized
from triptych_gateway.stores.store import MAX_CHAIN, Clock, ResponseReader, ResponseStore, StoredResponse, chain, wall_clock
from triptych_gateway.wire.errors import ApiError, NotFoundError, PreviousResponseNotFoundError, to_api_error

log = logging.getLogger(__name__)
_LOST = ApiError(500, "the gateway that worked on this response is gone", "server_error")
_KINDS = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs", "compaction": "cmp"}
#: Finds the item of a reference, as JSON. Raises TriptychError if there is none.
Lookup = Callable[[str], Awaitable[dict[str, Any]]]


@dataclass(frozen=True)
class ResponseInput:
    """What one response is made from."""

    #: The id of the response that is made.
    response_id: str
    #: The request's own items, with references replaced by what they refer to.
    items: Sequence[AnyItem]
    #: The items of all earlier responses of the chain, oldest first: of each, its input, then its output.
    history: Sequence[AnyItem] = ()
    tenant: str = ""
    previous_id: str | None = None
    #: `items` as JSON.
    input_items: bytes = b"[]"
    #: Whether the response will be kept.
    is_stored: bool = False

    def record(self, resource: dict[str, Any], events: bytes = b"", live_until_s: float = 0.0) -> StoredResponse:
        """What is kept of the response."""
        content = orjson.dumps(resource)
        return StoredResponse(self.response_id, self.tenant, self.previous_id, content, self.input_items, events, live_until_s)


async def read_items(given: Input | None, response_id: str, lookup: Lookup) -> tuple[list[AnyItem], list[dict[str, Any]]]:
    """The items of a request, as they are used and as JSON to be stored."""
    if isinstance(given, str):
        given = STORED_ITEMS.validate_python([{"role": "user", "content": given}])
    items: list[AnyItem] = []
    stored: list[dict[str, Any]] = []
    for number, item in enumerate(given or ()):
        if isinstance(item, ItemReference):
            written = await lookup(item.id)
            items.extend(STORED_ITEMS.validate_python([written]))
        else:
            written = _written(item, response_id, number)
            items.append(item)
        stored.append(written)
    return items, stored


def _written(item: AnyItem, response_id: str, number: int) -> dict[str, Any]:
    """The item as OpenAI lists it: with an id and a status, and its content in parts."""
    written = item.model_dump(exclude_none=True)
    kind = written.setdefault("type", "message")
    written.setdefault("id", input_item_id(_KINDS[kind], response_id, number))
    if kind != "compaction":
        written.setdefault("status", "completed")
    if isinstance(written.get("content"), str):
        part = "output_text" if written["role"] == "assistant" else "input_text"
        extra: dict[str, Any] = {"annotations": []} if part == "output_text" else {}
        written["content"] = [{"type": part, "text": written["content"], **extra}]
    return written


def _items_of(record: StoredResponse) -> list[dict[str, Any]]:
    """The items of a response as JSON: its input, then its output."""
    items: list[dict[str, Any]] = orjson.loads(record.input_items) + orjson.loads(record.response)["output"]
    return items


class ResponseHistory:
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

    async def begin(
        self, tenant: str, body: ResponseRequest, files: FileParts, store: ResponseReader | None = None
    ) -> ResponseInput:
        """Find all that the request continues.

        Args:
            files: files that were cut out of the body. They are stored with the items, and stay in `files`.
            store: where earlier responses are looked up, instead of the own store.

        Raises:
            NotFoundError: an earlier response or an item is not there, has expired, or is of another tenant.
            InvalidRequestError: an earlier response has not ended, or the input is too large to be stored.
        """
        response_input = await self.read(tenant, body.input, body.previous_response_id, store)
        if body.store is False:
            return response_input
        response_input = replace(response_input, input_items=files.restored(response_input.input_items))
        num_bytes = len(response_input.input_items)
        if num_bytes > self.max_bytes:
            if body.store or body.background:
                message = f"store: the input has {num_bytes} bytes; at most {self.max_bytes} are stored"
                raise InvalidRequestError(message, field="store", limit=self.max_bytes, value=num_bytes)
            return response_input
        return replace(response_input, is_stored=True)

    async def read(
        self, tenant: str, given: Input | None, previous_id: str | None, store: ResponseReader | None = None
    ) -> ResponseInput:
        """The input of a response that is not stored. Arguments and errors are those of `begin`."""
        store = store or self.store
        response_id = new_response_id()
        earlier = await self._earlier(store, tenant, previous_id) if previous_id is not None else []
        items, written = await read_items(given, response_id, lambda item_id: self._item(store, tenant, item_id))
        num_bytes = sum(len(record.input_items) + len(record.response) for record in earlier)
        history = await run_sized(
            num_bytes, lambda: [item for record in earlier for item in STORED_ITEMS.validate_python(_items_of(record))]
        )
        return ResponseInput(response_id, items, history, tenant, previous_id, orjson.dumps(written))

    async def _earlier(self, store: ResponseReader, tenant: str, previous_id: str) -> list[StoredResponse]:
        """The responses of a chain, oldest first."""
        field = "previous_response_id"
        found = await chain(store, tenant, previous_id, self._max_chain_bytes)
        if found is None:
            raise PreviousResponseNotFoundError(f"no response {previous_id[:64]!r}, or one that it continues is gone", field=field)
        if found[-1].is_live:
            raise InvalidRequestError(f"{field}: the response {previous_id[:64]!r} has not ended", field=field)
        return found

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
                items[:0] = _items_of(earlier)
            num_left -= len(found)
            next_id = found[-1].previous_id if found else None
        return items

    async def keep(self, response_input: ResponseInput, writer: ResponseWriter) -> None:
        """Store a response that has ended, if it shall be stored. If that is not possible, the response says that it is not."""
        if not response_input.is_stored:
            return
        try:
            await self.store.put(response_input.record(writer.resource))
        except TriptychError as error:
            log.warning("a response could not be stored: %s", error)
            writer.resource["store"] = False

    async def kept_events(
        self, events: AsyncGenerator[bytes, None], response_input: ResponseInput, writer: ResponseWriter
    ) -> AsyncGenerator[bytes, None]:
        """The events of a response. It is stored before its last event is sent, so that a client can use it as soon as it ends.

        Until then `store` says what shall be done, as in OpenAI's API. The last event says what was done: to continue a response
        that was not stored, a client sends its items again.
        """
        is_started = False
        try:
            async with aclosing(events):
                async for written in events:
                    if writer.is_finished:
                        await self.keep(response_input, writer)
                        if writer.resource["store"] != response_input.is_stored:
                            written = writer.restated(written)
                    is_started = True
                    yield written
        except Exception as error:
            # Without a first event, the error becomes an HTTP status, and there is no response.
            if is_started and not writer.is_finished:
                # The stream writes the failure afterwards, with what `keep` has found out.
                writer.fail(to_api_error(error))
                await self.keep(response_input, writer)
            raise

    async def kept_whole(self, work: Coroutine[Any, Any, bytes], response_input: ResponseInput, writer: ResponseWriter) -> bytes:
        """The response as JSON. It is stored before it is sent."""
        answer = await work
        await self.keep(response_input, writer)
        return answer if writer.resource["store"] == response_input.is_stored else writer.json()

    async def _item(self, store: ResponseReader, tenant: str, item_id: str) -> dict[str, Any]:
        response_id = response_of_item(item_id)
        record = await store.get(tenant, response_id) if response_id is not None else None
        for item in _items_of(record) if record is not None else ():
            if item.get("id") == item_id:
                return item
        raise NotFoundError(f"no item {item_id[:64]!r} in a stored response", field="input")


def ended_record(record: StoredResponse, resource: dict[str, Any]) -> StoredResponse:
    """The record of a live response that ends with this response object."""
    return replace(record, response=orjson.dumps(resource), live_until_s=0.0)
