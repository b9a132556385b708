"""POST /v1/chat/completions: request and answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Discriminator, Field, Tag, model_validator

from triptych_gateway.schemas.answers import TriptychExtension, Usage
from triptych_gateway.schemas.common import UINT32_MAX, GenerationRequest, JsonObject, NoOp, Schema, at, refuse

MAX_MESSAGES = 4096
#: Content parts of one message.
MAX_PARTS = 1024
Role = Literal["system", "developer", "user", "assistant", "tool"]


class TextPart(Schema):
    """Text."""

    type: Literal["text"]
    text: str


class MediaPart(Schema):
    """Fields that all media parts have."""

    uuid: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=256,
            description="Your own name for this content. A later request may send the name alone, without the content.",
        ),
    ] = None
    mm_processor_kwargs: Annotated[
        JsonObject | None, Field(description="Options of the model's processor for this item; before those of the request.")
    ] = None

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

    detail: Annotated[Any, NoOp("auto")] = None


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

    #: `dialects.convert` decodes it in a thread.
    data: Annotated[str, Field(min_length=1, description="The file in base64.")]
    format: Annotated[
        Literal["wav", "mp3", "flac", "ogg"], Field(description="What the file is; one that is not of this format is refused.")
    ]


class AudioPart(MediaPart):
    """Audio, inline."""

    type: Literal["input_audio"]
    input_audio: InputAudio | None = None


ContentPart = Annotated[TextPart | ImagePart | AudioPart | AudioUrlPart | VideoPart, Field(discriminator="type")]


def _content_kind(value: Any) -> str:
    return "parts" if isinstance(value, list) else "text"


Content = Annotated[
    Annotated[str, Tag("text")]
    | Annotated[list[ContentPart], Field(min_length=1, max_length=MAX_PARTS, fail_fast=True), Tag("parts")],
    Discriminator(_content_kind),
]


class Message(Schema):
    """One message of the conversation."""

    role: Role
    content: Annotated[Content, Field(description="The assistant's may be null.")]
    name: Annotated[str | None, Field(description="Name of the participant, for chat templates that use it.")] = None
    refusal: Annotated[Any, NoOp()] = None
    audio: Annotated[Any, NoOp()] = None
    function_call: Annotated[Any, NoOp()] = None
    tool_calls: Annotated[Any, NoOp([])] = None
    tool_call_id: Annotated[Any, NoOp()] = None

    @model_validator(mode="before")
    @classmethod
    def _assistant_may_say_nothing(cls, value: Any) -> Any:
        """Accept assistant messages without content: for messages that called a tool, SDKs omit the content or send null."""
        if isinstance(value, dict) and value.get("role") == "assistant" and value.get("content") is None:
            return {**value, "content": ""}
        return value


Messages = Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]


def has_media(messages: Iterable[Message]) -> bool:
    """Whether the conversation has a part that is not text."""
    parts = (part for message in messages if isinstance(message.content, list) for part in message.content)
    return any(not isinstance(part, TextPart) for part in parts)


class ChatCompletionRequest(GenerationRequest):
    """OpenAI's request, and the sampling options that vLLM adds to it."""

    messages: Messages
    max_completion_tokens: Annotated[int | None, Field(ge=1, le=UINT32_MAX, description="Most tokens per choice.")] = None
    max_tokens: Annotated[int | None, Field(ge=1, le=UINT32_MAX, description="Older name of max_completion_tokens.")] = None
    logprobs: Annotated[bool | None, Field(description="Send the log probability of each output token.")] = None
    top_logprobs: Annotated[int | None, Field(ge=0, le=20, description="Likeliest alternatives to send per token.")] = None

    add_generation_prompt: Annotated[bool | None, Field(description="End the prompt with the start of an assistant turn.")] = None
    continue_final_message: Annotated[bool | None, Field(description="Go on with the last message, the assistant's.")] = None
    chat_template_kwargs: Annotated[JsonObject | None, Field(description="Further variables for the chat template.")] = None
    mm_processor_kwargs: Annotated[
        JsonObject | None, Field(description="Options of the model's processor for the media of this request, e.g. fps of a video.")
    ] = None

    # Labels and hints that do not change the answer, by OpenAI's definition.
    metadata: Annotated[
        Annotated[dict[str, str], Field(max_length=16, fail_fast=True)] | None,
        Field(description="Labels for stored completions; nothing is stored here."),
    ] = None
    safety_identifier: Annotated[str | None, Field(description="A label of the end user; it changes nothing here.")] = None
    prompt_cache_key: Annotated[
        str | None,
        Field(description="A routing hint. The prefix cache finds equal prompts without it; cache_salt keeps them apart."),
    ] = None
    parallel_tool_calls: Annotated[bool | None, Field(description="Says how tools are called; without tools it says nothing.")] = (
        None
    )

    audio: Annotated[Any, NoOp()] = None
    function_call: Annotated[Any, NoOp("none")] = None
    functions: Annotated[Any, NoOp([])] = None
    modalities: Annotated[Any, NoOp(["text"])] = None
    moderation: Annotated[Any, NoOp()] = None
    prediction: Annotated[Any, NoOp()] = None
    prompt_cache_options: Annotated[Any, NoOp()] = None
    prompt_cache_retention: Annotated[Any, NoOp("in_memory")] = None
    reasoning_effort: Annotated[Any, NoOp("none")] = None
    response_format: Annotated[Any, NoOp({"type": "text"})] = None
    service_tier: Annotated[Any, NoOp("auto", "default")] = None
    store: Annotated[Any, NoOp(False)] = None
    tool_choice: Annotated[Any, NoOp("none")] = None
    tools: Annotated[Any, NoOp([])] = None
    verbosity: Annotated[Any, NoOp("medium")] = None
    web_search_options: Annotated[Any, NoOp()] = None

    @property
    def token_limit(self) -> int | None:
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def token_limit_name(self) -> str:
        return "max_completion_tokens" if self.max_completion_tokens is not None else "max_tokens"

    @property
    def num_logprobs(self) -> int | None:
        """Alternatives to report per token; None reports nothing."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @model_validator(mode="after")
    def _chat_options_fit_together(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise at("top_logprobs", "only allowed when logprobs is true")
        both = (self.max_tokens, self.max_completion_tokens)
        if None not in both and both[0] != both[1]:
            raise at("max_tokens", f"is the older name of max_completion_tokens; given: {both[0]} and {both[1]}")
        if self.continue_final_message and self.add_generation_prompt:
            raise at("continue_final_message", "cannot be true together with add_generation_prompt")
        return self


class TopLogprob(BaseModel):
    """One alternative at a position."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    """An output token."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    """Log probabilities of the output tokens."""

    content: list[TokenLogprob]
    refusal: None


class AssistantMessage(BaseModel):
    """The message that the model generated."""

    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(BaseModel):
    """One answer."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length"]
    stop_reason: Annotated[str | int | None, Field(description="The stop string or stop token id that ended it.")]
    token_ids: Annotated[list[int] | None, Field(description="Present when return_token_ids is true.")] = None


class ChatCompletion(BaseModel):
    """The answer when stream is not set."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str | None
    choices: list[ChatChoice]
    usage: Usage
    triptych: TriptychExtension
