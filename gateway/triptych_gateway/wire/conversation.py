"""The messages of a conversation, with texts, media and tool calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from triptych_gateway.wire.documents import Document
from triptych_gateway.wire.schema import HistorySchema, JsonObject, NoOp, Schema, TextOr, at, optional, refuse
from triptych_gateway.wire.tools import ToolCalls

MAX_MESSAGES = 4096
#: Content parts of one message.
MAX_PARTS = 1024
_NO_BREAKPOINT = "the prefix cache finds equal prompts by itself"
_ASSISTANT_ONLY = ("tool_calls", "reasoning_content", "reasoning", "refusal")
Role = Literal["system", "developer", "user", "assistant", "tool"]


class TextPart(HistorySchema):
    """Text."""

    type: Literal["text"]
    text: str
    prompt_cache_breakpoint: Annotated[Any, NoOp(because=_NO_BREAKPOINT)] = None


class RefusalPart(HistorySchema):
    """A refusal of the assistant, which the model sees as text."""

    type: Literal["refusal"]
    refusal: str


class MediaPart(HistorySchema):
    """Fields that all media parts have."""

    uuid: str | None = optional(
        "Your own name for this content. A later request may send it alone.",
        min_length=1,
        max_length=256,
    )
    mm_processor_kwargs: JsonObject | None = optional(
        "Options of the model's processor for this item; before those of the request."
    )

    prompt_cache_breakpoint: Annotated[Any, NoOp(because=_NO_BREAKPOINT)] = None

    @model_validator(mode="after")
    def _content_or_name(self) -> Self:
        name = next(name for name in type(self).model_fields if name.startswith(("image", "video", "audio", "input_audio")))
        if getattr(self, name) is None and self.uuid is None:
            raise refuse(f"{name} is required, unless uuid names content that was sent before")
        return self


class MediaUrl(Schema):
    """The URL of a file: https:, http: or data:, or file: if the frontend allows it."""

    url: Annotated[str, Field(min_length=1)]


class ImageUrl(MediaUrl):
    """The URL of an image."""

    detail: Literal["low", "high", "auto"] | None = optional(
        "How finely the image is looked at, if the model has several resolutions. Default: auto, the model's own."
    )


class ImagePart(MediaPart):
    """An image, by URL."""

    type: Literal["image_url"]
    image_url: ImageUrl | None = None


class VideoPart(MediaPart):
    """A video, by URL."""

    type: Literal["video_url"]
    video_url: MediaUrl | None = None


class AudioUrlPart(MediaPart):
    """An audio file, by URL."""

    type: Literal["audio_url"]
    audio_url: MediaUrl | None = None


class InputAudio(Schema):
    """An audio file, inline."""

    #: `wire.media` decodes it in a thread.
    data: Annotated[str, Field(min_length=1, description="The file in base64.")]
    format: Annotated[
        Literal["wav", "mp3", "flac", "ogg"], Field(description="What the file is; one that is not of this format is refused.")
    ]


class AudioPart(MediaPart):
    """Audio, inline."""

    type: Literal["input_audio"]
    input_audio: InputAudio | None = None


class FilePart(HistorySchema):
    """A document. The model reads its text."""

    type: Literal["file"]
    file: Document
    prompt_cache_breakpoint: Annotated[Any, NoOp(because=_NO_BREAKPOINT)] = None


AnyMediaPart = ImagePart | AudioPart | AudioUrlPart | VideoPart
ContentPart = Annotated[TextPart | RefusalPart | FilePart | AnyMediaPart, Field(discriminator="type")]


Content = TextOr[Annotated[list[ContentPart], Field(min_length=1, max_length=MAX_PARTS, fail_fast=True)]]


class Message(HistorySchema):
    """One message of the conversation."""

    role: Annotated[Role, Field(description="Who speaks.")]
    content: Annotated[Content, Field(description="Of an assistant or a tool it may be null, empty or missing.")]
    name: str | None = optional("Name of the participant, for chat templates that use it.")
    reasoning_content: str | None = optional("The assistant's: what it thought, for chat templates that use it.")
    reasoning: str | None = optional("vLLM's other name of reasoning_content.")
    refusal: str | None = optional("The assistant's: its refusal. The model sees it as text.")
    tool_calls: ToolCalls | None = None
    tool_call_id: str | None = optional("A tool's: the call that it answers.", min_length=1, max_length=256)
    parsed: Any = optional("An SDK's reading of the content; it changes nothing.")
    audio: Annotated[Any, NoOp()] = None
    function_call: Annotated[Any, NoOp(because="send tool_calls")] = None

    @model_validator(mode="before")
    @classmethod
    def _some_may_say_nothing(cls, value: Any) -> Any:
        """Accept assistants and tools without content. SDKs omit it, or send null or [], for calls and empty results."""
        if isinstance(value, dict) and value.get("role") in ("assistant", "tool") and value.get("content") in (None, []):
            return {**value, "content": ""}
        return value

    @model_validator(mode="after")
    def _fields_fit_the_role(self) -> Self:
        if self.role != "assistant":
            given = next((name for name in _ASSISTANT_ONLY if getattr(self, name)), None)
            if given or (isinstance(self.content, list) and any(isinstance(part, RefusalPart) for part in self.content)):
                raise refuse(f"{given or 'a refusal'} is only allowed with the role assistant; the role is {self.role}")
        if (self.role == "tool") != (self.tool_call_id is not None):
            needs = "is required" if self.tool_call_id is None else "is not allowed"
            raise refuse(f"tool_call_id {needs} with the role {self.role}")
        if None not in (self.reasoning, self.reasoning_content) and self.reasoning != self.reasoning_content:
            raise refuse("reasoning is another name of reasoning_content; they differ")
        return self

    @property
    def thoughts(self) -> str | None:
        """What the assistant thought."""
        return self.reasoning_content if self.reasoning_content is not None else self.reasoning


class ChatPrompt(Schema):
    """The options of a conversation's prompt."""

    add_generation_prompt: bool | None = optional("End the prompt with the start of an assistant turn. Default true.")
    continue_final_message: bool | None = optional("Go on with the last message, the assistant's.")
    chat_template_kwargs: JsonObject | None = optional("Further variables for the chat template.")
    mm_processor_kwargs: JsonObject | None = optional("Options of the model's processor for all media, e.g. fps of a video.")

    def check_end(self) -> None:
        """Raise an error if the prompt would have two ends."""
        if self.continue_final_message and self.add_generation_prompt:
            raise at("continue_final_message", "cannot be true together with add_generation_prompt")


Messages = Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]


class TextOrMessages(Schema):
    """A text, or instead of it a conversation with the options of `ChatPrompt`."""

    #: The name of the field with the text, and the names of those that are only for conversations.
    text_field: ClassVar[str]
    chat_fields: ClassVar[tuple[str, ...]] = tuple(ChatPrompt.model_fields)

    messages: Messages | None = optional(
        "Instead of a text: a conversation for the chat template, with media if the model takes them."
    )
    add_special_tokens: bool | None = optional("Let the tokenizer add its own to a text. Default true.")

    @model_validator(mode="after")
    def _text_or_messages(self) -> Self:
        if (getattr(self, self.text_field) is None) == (self.messages is None):
            raise at(self.text_field, f"send either {self.text_field} or messages")
        given = next((name for name in self.chat_fields if getattr(self, name) is not None), None)
        if given and self.messages is None:
            raise at(given, "only allowed with messages")
        if self.add_special_tokens and self.messages is not None:
            raise at("add_special_tokens", "not with messages: the chat template writes the special tokens itself")
        return self


def documents_of(messages: Iterable[Message]) -> Iterator[tuple[Document, str]]:
    """The documents of a conversation, each with the path of its field."""
    for number, message in enumerate(messages):
        for index, part in enumerate(message.content if isinstance(message.content, list) else ()):
            if isinstance(part, FilePart):
                yield part.file, f"messages[{number}].content[{index}].file"


def has_media(messages: Iterable[Message]) -> bool:
    """Whether the conversation has a part that is not text."""
    parts = (part for message in messages if isinstance(message.content, list) for part in message.content)
    return any(isinstance(part, MediaPart) for part in parts)
