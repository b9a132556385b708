"""Compaction: the model writes a summary of a conversation, which takes its place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from triptych_gateway.apis.responses.items import AnyItem, InputText, MessageItem
from triptych_gateway.apis.responses.opaque import output_item_id, seal
from triptych_gateway.apis.responses.schema import CompactRequest, ResponseRequest

_TASK = (
    "Summarize this conversation so that it can go on from your summary alone. Keep the user's goals and requests, all facts, "
    "names, numbers and results of tools that may still matter, the decisions that were made, and what is still to be done. "
    "Write only the summary."
)
#: Most tokens of a summary. One that is longer is cut: it is still shorter than the conversation.
_MAX_SUMMARY_TOKENS = 1024


def summary_request(body: CompactRequest) -> ResponseRequest:
    """The request that asks for the summary. Its items are those of `with_task`."""
    return ResponseRequest(
        model=body.model, input=_TASK, instructions=body.instructions, store=False, max_output_tokens=_MAX_SUMMARY_TOKENS
    )


def with_task(given: Sequence[AnyItem]) -> list[AnyItem]:
    """The items of a request, and at their end the request to summarize the conversation.

    A last message of the user gets the request as a further part, because many chat templates refuse two such messages in a row.
    """
    items = list(given)
    last = items[-1] if items else None
    task = InputText(type="input_text", text=_TASK)
    if isinstance(last, MessageItem) and last.role == "user":
        parts = [InputText(type="input_text", text=last.content)] if isinstance(last.content, str) else last.content
        items[-1] = last.model_copy(update={"content": [*parts, task]})
    else:
        items.append(MessageItem(role="user", content=[task]))
    return items


def compacted(resource: dict[str, Any]) -> bytes:
    """The answer of /v1/responses/compact.

    Args:
        resource: the response object of the summary.
    """
    texts = [part["text"] for item in resource["output"] if item["type"] == "message" for part in item["content"]]
    item_id = output_item_id("cmp", resource["id"], 0)
    return orjson.dumps(
        {
            "id": resource["id"],
            "object": "response.compaction",
            "created_at": resource["created_at"],
            "output": [{"id": item_id, "type": "compaction", "encrypted_content": seal("".join(texts).strip())}],
            "usage": resource["usage"],
        }
    )
