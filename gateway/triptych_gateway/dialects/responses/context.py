"""What one request continues: its own items, and the items of the responses before it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from triptych_gateway.dialects.responses.ids import input_item_id
from triptych_gateway.schemas.responses.items import STORED_ITEMS, AnyItem, ItemReference
from triptych_gateway.schemas.responses.request import Input

_KINDS = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs", "compaction": "cmp"}


@dataclass(frozen=True)
class Context:
    """The items of a request.

    Args:
        response_id: the id of the response that is made.
        items: the request's own items, with references replaced by what they refer to.
        history: the items of all earlier responses of the chain, oldest first: of each, its input, then its output.
    """

    response_id: str
    items: Sequence[AnyItem]
    history: Sequence[AnyItem] = ()


#: Finds the item of a reference, as JSON. Raises TriptychError if there is none.
Lookup = Callable[[str], Awaitable[dict[str, Any]]]


async def read_items(given: Input | None, response_id: str, lookup: Lookup) -> tuple[list[AnyItem], list[dict[str, Any]]]:
    """The items of a request, as they are used and as JSON to be stored."""
    if given is None:
        return [], []
    if isinstance(given, str):
        given = STORED_ITEMS.validate_python([{"role": "user", "content": given}])
    items: list[AnyItem] = []
    stored: list[dict[str, Any]] = []
    for number, item in enumerate(given):
        if isinstance(item, ItemReference):
            written = await lookup(item.id)
            items.extend(stored_items([written]))
        else:
            written = _written(item, response_id, number)
            items.append(item)
        stored.append(written)
    return items, stored


def stored_items(written: Sequence[dict[str, Any]]) -> list[AnyItem]:
    """Items of earlier responses, from their JSON."""
    return STORED_ITEMS.validate_python(list(written))


def history_of(responses: Sequence[tuple[bytes, bytes]]) -> list[AnyItem]:
    """The items of earlier responses.

    Args:
        responses: (input items, response) of each as JSON, oldest first.
    """
    history: list[AnyItem] = []
    for input_items, response in responses:
        history += stored_items(orjson.loads(input_items))
        history += stored_items(orjson.loads(response)["output"])
    return history


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
