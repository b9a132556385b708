"""Ollama's requests. Every field of its API is declared."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from triptych_gateway.apis.ollama.options import OllamaOptions
from triptych_gateway.wire.conversation import MAX_MESSAGES, MAX_PARTS
from triptych_gateway.wire.schema import MAX_SCHEMA_DEPTH, HistorySchema, JsonSchema, NoOp, Schema, Shallow, TextOr, at, optional
from triptych_gateway.wire.schema import refuse as refusal
from triptych_gateway.wire.tools import MAX_TOOL_CALLS, ToolName, Tools

#: Most inputs of /api/embed.
MAX_INPUTS = 65_536
#: Of Go: numbers with units, as in 1h30m.
_DURATION = re.compile(r"-?(?:0|(?:\d+(?:\.\d*)?(?:ns|us|µs|ms|s|m|h))+)")
_NO_PICTURES = "this server makes text"


def _is_duration(value: float | str) -> float | str:
    if isinstance(value, str) and not _DURATION.fullmatch(value):
        raise refusal(f"must be seconds, or a duration such as 5m; given: {value[:40]!r}")
    return value


KeepAlive = Annotated[
    Annotated[int | float, Tag("number")] | Annotated[str, Tag("text")],
    Discriminator(lambda value: "text" if isinstance(value, str) else "number"),
    AfterValidator(_is_duration),
]
Think = Annotated[
    Annotated[bool, Tag("switch")] | Annotated[Literal["low", "medium", "high", "max"], Tag("level")],
    Discriminator(lambda value: "level" if isinstance(value, str) else "switch"),
]
Format = Annotated[
    Annotated[Literal["", "json"], Tag("name")] | Annotated[JsonSchema, Tag("schema")],
    Discriminator(lambda value: "name" if isinstance(value, str) else "schema"),
]
Images = Annotated[
    list[Annotated[str, Field(min_length=1)]],
    Field(max_length=MAX_PARTS, fail_fast=True, description="Files in base64. They stand before the text."),
]


class _ModelRequest(Schema):
    model: Annotated[str, Field(min_length=1, description="A name from /api/tags, with or without `:latest`.")]
    options: OllamaOptions | None = optional("Options of generation.")
    keep_alive: KeepAlive | None = optional(
        "Seconds, or a duration such as 5m. 0 without a prompt puts the model to sleep, for operators' keys, and is refused with "
        "one. Any other time changes nothing: a model stays in memory until others need it."
    )

    @property
    def unloads(self) -> bool:
        """Whether the model shall give its memory back."""
        return self.keep_alive is not None and not any(digit in "123456789" for digit in str(self.keep_alive))


class _GenerationRequest(_ModelRequest):
    stream: bool | None = optional("Send a line of JSON for each piece of the answer. Default true.")
    format: Format | None = optional("`json`: any JSON object. A JSON Schema: JSON that follows it.")
    think: Think | None = optional(
        "Whether the model thinks before it answers, or how much, as far as its chat template knows this level. Default: as the "
        "model was made."
    )
    logprobs: bool | None = optional("Send the log probability of each output token.")
    top_logprobs: int | None = optional("Likeliest alternatives to send per token, with logprobs.", ge=0, le=20)
    shift: Annotated[Any, NoOp(False, because="an answer ends where the model's context is full")] = None

    @property
    def is_stream(self) -> bool:
        """Whether the answer is streamed."""
        return self.stream is not False

    @property
    def num_logprobs(self) -> int | None:
        """Alternatives to report per token; None reports nothing."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @model_validator(mode="after")
    def _logprobs_are_on(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise at("top_logprobs", "only allowed when logprobs is true")
        return self


class OllamaFunction(HistorySchema):
    """The function of a call, and its arguments."""

    name: ToolName
    arguments: Annotated[dict[str, Any], AfterValidator(Shallow(MAX_SCHEMA_DEPTH))] | None = optional("An object.")
    index: int | None = optional("Which call of the message it is. Their order says it.")


class OllamaToolCall(HistorySchema):
    """A call that the assistant made."""

    id: str | None = optional("By which a tool's message can name it.", max_length=256)
    type: Literal["function"] | None = None
    index: int | None = optional("Which call of the message it is. Their order says it.")
    function: OllamaFunction


class OllamaMessage(HistorySchema):
    """One message of the conversation."""

    role: Annotated[Literal["system", "user", "assistant", "tool"], Field(description="Who speaks.")]
    content: str | None = optional("The text.")
    images: Images | None = None
    thinking: str | None = optional("The assistant's: what it thought, for chat templates that use it.")
    tool_calls: Annotated[list[OllamaToolCall], Field(max_length=MAX_TOOL_CALLS, fail_fast=True)] | None = optional(
        "The assistant's: the tools that it called."
    )
    tool_name: str | None = optional("A tool's: its name.")
    tool_call_id: str | None = optional(
        "A tool's: the call that it answers. Without it, it answers the first call of that tool that has no answer yet."
    )


class ChatRequest(_GenerationRequest):
    """A conversation to answer."""

    messages: Annotated[list[OllamaMessage], Field(max_length=MAX_MESSAGES, fail_fast=True)] | None = optional(
        "The conversation. If the last message is the assistant's, the answer goes on with it. Without any, the model is loaded."
    )
    tools: Tools | None = None
    truncate: bool | None = optional(
        "Leave out the oldest exchanges of a conversation that is too long. Instructions and the last one stay. Default true."
    )
    system: Annotated[Any, NoOp("", because="send a message of the role system")] = None
    template: Annotated[Any, NoOp("", because="the model's own chat template is used")] = None


class GenerateRequest(_GenerationRequest):
    """A prompt to answer, or with raw to continue."""

    prompt: str | None = optional("The user's message. Without it, images and suffix, the model is loaded.")
    system: str | None = optional("Instructions before the prompt.")
    images: Images | None = None
    raw: bool | None = optional("Continue the prompt as it is, without a chat template. It has a placeholder for each image.")
    truncate: bool | None = optional("Keep only the last tokens of a prompt that is too long. Default false.")
    suffix: str | None = optional("Text behind the answer: the prompt is continued without a chat template, up to this text.")
    template: Annotated[Any, NoOp("", because="the model's own chat template is used; with raw, none")] = None
    context: Annotated[Any, NoOp([], because="POST /api/chat takes a whole conversation")] = None
    width: Annotated[Any, NoOp(because=_NO_PICTURES)] = None
    height: Annotated[Any, NoOp(because=_NO_PICTURES)] = None
    steps: Annotated[Any, NoOp(because=_NO_PICTURES)] = None

    @model_validator(mode="after")
    def _raw_is_only_a_prompt(self) -> Self:
        given = next((name for name in ("system", "think") if self.raw and getattr(self, name)), None)
        if given:
            raise at(given, "not with raw: the prompt is continued as it is")
        beside = next((name for name in ("system", "think", "images", "truncate") if self.suffix and getattr(self, name)), None)
        if beside:
            raise at(beside, "not with a suffix: the text between prompt and suffix is filled in")
        return self


class EmbedRequest(_ModelRequest):
    """Texts whose vectors are asked for."""

    input: TextOr[Annotated[list[str], Field(max_length=MAX_INPUTS, fail_fast=True)]]
    truncate: bool | None = optional("Cut inputs that are too long. Default true.")
    dimensions: int | None = optional("Length of the vectors, for models whose vectors can be cut.", ge=1, le=2**31 - 1)
    prompt: str | None = optional("What some clients repeat of input for /api/embeddings. It changes nothing.")


class EmbeddingsRequest(_ModelRequest):
    """A text whose vector is asked for, as in older versions of Ollama."""

    prompt: str


class ShowRequest(Schema):
    """Names a model."""

    model: str | None = optional("A name from /api/tags, with or without `:latest`.", min_length=1)
    name: str | None = optional("Older name of model.", min_length=1)
    verbose: Annotated[Any, NoOp(False, because="the tokenizer's tables are not sent")] = None
    system: Annotated[Any, NoOp("", because="models are served as they are")] = None
    template: Annotated[Any, NoOp("", because="models are served as they are")] = None
    options: Annotated[Any, NoOp({}, because="models are served as they are")] = None

    @model_validator(mode="after")
    def _names_one_model(self) -> Self:
        if self.model is None and self.name is None:
            raise at("model", "this field is required")
        if None not in (self.model, self.name) and self.model != self.name:
            raise at("name", "is the older name of model; they differ")
        return self
