"""The input items of /v1/responses. An output item of an earlier response is also an input item."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, TypeAdapter

from triptych_gateway.schemas.common import HistorySchema, NoOp, optional
from triptych_gateway.schemas.conversation import MAX_MESSAGES
from triptych_gateway.schemas.responses.content import Content

Status = Literal["in_progress", "completed", "incomplete"]
ItemId = Annotated[str | None, Field(min_length=1, max_length=128, description="The item's own id; it gets one if it has none.")]
CallId = Annotated[str, Field(min_length=1, max_length=128, description="Joins a call and its output.")]


class MessageItem(HistorySchema):
    """A message."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Content
    id: ItemId = None
    status: Status | None = None
    phase: Literal["commentary", "final_answer"] | None = optional(
        "Of the assistant: whether it goes on with tool calls (commentary) or is the answer. It is kept."
    )


class FunctionCallItem(HistorySchema):
    """A model's call of a function."""

    type: Literal["function_call"]
    call_id: CallId
    name: Annotated[str, Field(min_length=1, max_length=128)]
    arguments: Annotated[str, Field(description="JSON, as the model wrote it.")]
    id: ItemId = None
    status: Status | None = None
    caller: Annotated[Any, NoOp({"type": "direct"})] = None
    namespace: Annotated[Any, NoOp()] = None


class FunctionCallOutputItem(HistorySchema):
    """What a function returned."""

    type: Literal["function_call_output"]
    call_id: CallId
    output: Content
    id: ItemId = None
    status: Status | None = None
    name: str | None = None
    caller: Annotated[Any, NoOp({"type": "direct"})] = None
    namespace: Annotated[Any, NoOp()] = None


class SummaryText(HistorySchema):
    """A part of a summary of reasoning."""

    type: Literal["summary_text"]
    text: str


class ReasoningText(HistorySchema):
    """A part of reasoning."""

    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(HistorySchema):
    """What a model thought before the next message or call."""

    type: Literal["reasoning"]
    summary: Annotated[list[SummaryText], Field(max_length=64, fail_fast=True)] = Field(default_factory=list)
    content: Annotated[list[ReasoningText], Field(max_length=64, fail_fast=True)] | None = None
    encrypted_content: str | None = optional("As this server sent it. Read if there is no content.")
    id: ItemId = None
    status: Status | None = None


class CompactionItem(HistorySchema):
    """A conversation in short, from /v1/responses/compact."""

    type: Literal["compaction"]
    encrypted_content: Annotated[str, Field(min_length=1, description="As this server sent it.")]
    id: ItemId = None
    created_by: str | None = None


class ItemReference(HistorySchema):
    """An item of a stored response."""

    type: Literal["item_reference"] | None = None
    id: Annotated[str, Field(min_length=1, max_length=128)]


def _item_kind(value: Any) -> str | None:
    """The type. OpenAI's clients may leave it out of messages and references."""
    given = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    if given is None and isinstance(value, dict):
        return "message" if "role" in value else "item_reference"
    return given if isinstance(given, str) else None


Item = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[FunctionCallItem, Tag("function_call")]
    | Annotated[FunctionCallOutputItem, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")]
    | Annotated[CompactionItem, Tag("compaction")]
    | Annotated[ItemReference, Tag("item_reference")],
    Discriminator(_item_kind),
]
AnyItem = MessageItem | FunctionCallItem | FunctionCallOutputItem | ReasoningItem | CompactionItem | ItemReference
Items = Annotated[list[Item], Field(max_length=MAX_MESSAGES, fail_fast=True)]
#: Reads items that were stored.
STORED_ITEMS: TypeAdapter[list[AnyItem]] = TypeAdapter(list[Item])


def _input_kind(value: Any) -> str:
    return "items" if isinstance(value, list) else "text"


Input = Annotated[Annotated[str, Tag("text")] | Annotated[Items, Tag("items")], Discriminator(_input_kind)]
