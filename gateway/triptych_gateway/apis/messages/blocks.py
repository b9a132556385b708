"""Content blocks and messages of requests."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from triptych_gateway.wire.conversation import MAX_MESSAGES, MAX_PARTS
from triptych_gateway.wire.schema import MAX_SCHEMA_DEPTH, HistorySchema, NoOp, Schema, Shallow, TextOr, optional

#: The input of a tool. It travels as JSON text, as schemas do.
ToolInput = Annotated[dict[str, Any], AfterValidator(Shallow(MAX_SCHEMA_DEPTH))]


class CacheControl(Schema):
    """A mark of what to cache, which changes nothing."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class Cacheable(Schema):
    """Fields of blocks that can carry a cache mark."""

    cache_control: CacheControl | None = optional("Changes nothing: the prefix cache finds equal prompts by itself.")


class TextBlock(Cacheable, HistorySchema):
    """Text."""

    type: Literal["text"]
    text: str


class Base64ImageSource(Schema):
    """The file of an image."""

    type: Literal["base64"]
    media_type: Annotated[
        Literal["image/jpeg", "image/png", "image/gif", "image/webp"],
        Field(description="What the file is; one that is not of this format is refused."),
    ]
    data: Annotated[str, Field(min_length=1, description="The file in base64.")]


class UrlImageSource(Schema):
    """The address of an image."""

    type: Literal["url"]
    url: Annotated[str, Field(min_length=1, description="https: or http:, as far as the frontend allows it.")]


class ImageBlock(Cacheable, HistorySchema):
    """An image. Files of Anthropic's Files API are refused."""

    type: Literal["image"]
    source: Annotated[Base64ImageSource | UrlImageSource, Field(discriminator="type")]
    transformations: Annotated[Any, NoOp({}, because="the model's processor decides about sizes")] = None


#: A string, or a list of text blocks.
TextOrBlocks = TextOr[Annotated[list[TextBlock], Field(max_length=MAX_PARTS, fail_fast=True)]]


class PlainTextSource(Schema):
    """A document as text."""

    type: Literal["text"]
    media_type: Literal["text/plain"]
    data: str


_SourceBlock = Annotated[TextBlock | ImageBlock, Field(discriminator="type")]


class ContentSource(Schema):
    """A document as text and images."""

    type: Literal["content"]
    content: TextOr[Annotated[list[_SourceBlock], Field(min_length=1, max_length=MAX_PARTS, fail_fast=True)]]


class Citations(Schema):
    """Whether the answer cites the document."""

    enabled: Annotated[Any, NoOp(False, because="answers cite nothing")] = None


class DocumentBlock(Cacheable, HistorySchema):
    """A document of text. PDF files are refused."""

    type: Literal["document"]
    source: Annotated[PlainTextSource | ContentSource, Field(discriminator="type")]
    title: str | None = optional("Stands before the document.")
    context: str | None = optional("Stands before the document, after its title.")
    citations: Citations | None = None


class ThinkingBlock(HistorySchema):
    """What the assistant thought before it answered, as it was received."""

    type: Literal["thinking"]
    thinking: str
    signature: Annotated[str, Field(description="As it was received. It is not verified.")] = ""


class RedactedThinkingBlock(HistorySchema):
    """Encrypted thinking of another server. It cannot be read here, and is left out of the prompt."""

    type: Literal["redacted_thinking"]
    data: str


class DirectCaller(Schema):
    """The model itself called the tool."""

    type: Literal["direct"]


class ToolUseBlock(Cacheable, HistorySchema):
    """A tool call of the assistant."""

    type: Literal["tool_use"]
    id: Annotated[str, Field(min_length=1)]
    name: Annotated[str, Field(min_length=1)]
    input: Annotated[ToolInput, Field(description="The arguments.")]
    caller: DirectCaller | None = None
    toolset_name: Annotated[Any, NoOp(because="toolsets are Anthropic's")] = None


_ResultBlock = Annotated[TextBlock | ImageBlock | DocumentBlock, Field(discriminator="type")]

_ResultContent = TextOr[Annotated[list[_ResultBlock], Field(max_length=MAX_PARTS, fail_fast=True)]]


class ToolResultBlock(Cacheable, HistorySchema):
    """The result of a tool call."""

    type: Literal["tool_result"]
    tool_use_id: Annotated[str, Field(min_length=1, description="The id of a tool_use block of an earlier message.")]
    content: _ResultContent | None = None
    is_error: bool | None = optional("The tool failed. `Error: ` is put before its result.")
    toolset_name: Annotated[Any, NoOp(because="toolsets are Anthropic's")] = None


_UserBlock = Annotated[TextBlock | ImageBlock | DocumentBlock | ToolResultBlock, Field(discriminator="type")]
_AssistantBlock = Annotated[TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock, Field(discriminator="type")]


class UserTurn(HistorySchema):
    """A turn of the user."""

    role: Literal["user"]
    content: TextOr[Annotated[list[_UserBlock], Field(min_length=1, max_length=MAX_PARTS, fail_fast=True)]]


class AssistantTurn(HistorySchema):
    """A turn of the assistant. If it is the last message, the answer goes on with it."""

    role: Literal["assistant"]
    content: TextOr[Annotated[list[_AssistantBlock], Field(max_length=MAX_PARTS, fail_fast=True)]]


class SystemTurn(HistorySchema):
    """Instructions in the middle of a conversation, for chat templates that take them there."""

    role: Literal["system"]
    content: TextOrBlocks


Message = Annotated[UserTurn | AssistantTurn | SystemTurn, Field(discriminator="role")]
Messages = Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
