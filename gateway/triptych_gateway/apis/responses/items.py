"""The input items of /v1/responses and their content. An output item of an earlier response is also an input item."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, TypeAdapter, model_validator

from triptych_gateway.wire.conversation import MAX_MESSAGES, MAX_PARTS, InputAudio
from triptych_gateway.wire.documents import Document
from triptych_gateway.wire.schema import HistorySchema, NoOp, TextOr, optional, refuse


class InputText(HistorySchema):
    """Text."""

    type: Literal["input_text"]
    text: str
    prompt_cache_breakpoint: Annotated[Any, NoOp()] = None


class InputImage(HistorySchema):
    """An image, by URL, or by the id of a file that was sent to /v1/files."""

    type: Literal["input_image"]
    image_url: str | None = optional("https:, http: or data:, or file: if it is allowed.", min_length=1)
    file_id: str | None = optional("Of the image, instead of a URL.", min_length=1, max_length=64)
    detail: Literal["low", "high", "auto"] | None = optional("How finely it is looked at, for models with several resolutions.")
    prompt_cache_breakpoint: Annotated[Any, NoOp()] = None

    @model_validator(mode="after")
    def _one_content(self) -> Self:
        if (self.image_url is None) == (self.file_id is None):
            raise refuse("exactly one of image_url and file_id is required")
        return self


class InputVideo(HistorySchema):
    """A video, by URL."""

    type: Literal["input_video"]
    video_url: Annotated[str, Field(min_length=1, description="https:, http: or data:, or file: if it is allowed.")]


class InputAudioPart(HistorySchema):
    """Audio, inline. An extension of OpenAI's items, with the part of its chat completions."""

    type: Literal["input_audio"]
    input_audio: InputAudio


class InputFile(Document):
    """A document. The model reads its text."""

    type: Literal["input_file"]
    file_url: Annotated[Any, NoOp(because="send file_data, or file_id")] = None
    detail: Annotated[Any, NoOp("auto", because="the model reads the text")] = None
    prompt_cache_breakpoint: Annotated[Any, NoOp()] = None


class OutputText(HistorySchema):
    """Text that a model wrote. Annotations and log probabilities may be sent back; they change nothing."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


class Refusal(HistorySchema):
    """A model's refusal. The model sees it as its own text."""

    type: Literal["refusal"]
    refusal: str


Part = Annotated[
    Annotated[InputText, Tag("input_text")]
    | Annotated[InputImage, Tag("input_image")]
    | Annotated[InputVideo, Tag("input_video")]
    | Annotated[InputAudioPart, Tag("input_audio")]
    | Annotated[InputFile, Tag("input_file")]
    | Annotated[OutputText, Tag("output_text")]
    | Annotated[Refusal, Tag("refusal")],
    Discriminator(lambda value: value.get("type") if isinstance(value, dict) else getattr(value, "type", None)),
]


Content = TextOr[Annotated[list[Part], Field(max_length=MAX_PARTS, fail_fast=True)]]
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


Input = TextOr[Items]
