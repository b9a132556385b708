"""POST /v1/audio/transcriptions and /v1/audio/translations: requests, which are forms, and answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Self, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, Field, InstanceOf, WithJsonSchema, model_validator

from triptych_gateway.wire.schema import NoOp, Schema, at, optional, refuse


@dataclass(frozen=True)
class UploadedFile:
    """A file of a form."""

    name: str
    content: bytes = field(repr=False)


def _file(value: Any) -> Any:
    if not isinstance(value, UploadedFile):
        raise refuse("must be a file, so its part of the form needs a filename")
    if not value.content:
        raise refuse("is empty (0 bytes)")
    return value


def _number(value: Any) -> Any:
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _flag(value: Any) -> Any:
    return {"true": True, "True": True, "1": True, "false": False, "False": False, "0": False}.get(value, value)


FormFile = Annotated[InstanceOf[UploadedFile], BeforeValidator(_file), WithJsonSchema({"type": "string", "format": "binary"})]
FormNumber = Annotated[float, BeforeValidator(_number)]
FormFlag = Annotated[bool, BeforeValidator(_flag)]


def takes_list(schema: type[Schema], name: str) -> bool:
    """Whether a field of a form may have several values."""
    info = schema.model_fields.get(name)
    return info is not None and any(get_origin(kind) is list for kind in (info.annotation, *get_args(info.annotation)))


_WITH_TIMES = ("srt", "verbose_json", "vtt", "diarized_json")


def _no_times(value: Any) -> Any:
    if value in _WITH_TIMES:
        raise refuse(f"{value} needs timestamps, which the models here do not give; send json or text", "unsupported")
    return value


Words = Annotated[str, Field(min_length=1, max_length=256)]
Language = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z -]{1,31}$")]


class AudioRequest(Schema):
    """The fields that both requests have."""

    file: Annotated[
        FormFile, Field(description="The audio file. If its name has the ending of a sound format, it must be of that format.")
    ]
    model: Annotated[str, Field(description="A name from /v1/models, of a model that takes audio.")]
    prompt: str | None = optional("What the audio is about, or the text before it.")
    response_format: (
        Annotated[Literal["json", "text"], BeforeValidator(_no_times, json_schema_input_type=Literal["json", "text"])] | None
    ) = optional("json or text. Formats with timestamps are refused. Default json.")
    temperature: Annotated[FormNumber, Field(ge=0, le=1)] | None = optional("0 to 1. Divides the logits; 0 is greedy. Default 0.")

    # Only transcriptions are streamed, and have log probabilities.
    @property
    def is_stream(self) -> bool:
        """Whether the answer is sent as events."""
        return bool(getattr(self, "stream", None))

    @property
    def with_logprobs(self) -> bool:
        """Whether the answer has the log probabilities of its tokens."""
        return bool(getattr(self, "include", None))

    @property
    def is_text(self) -> bool:
        """Whether the answer is plain text."""
        return self.response_format == "text"


class TranslationRequest(AudioRequest):
    """OpenAI's request for a translation into English."""


class TranscriptionRequest(AudioRequest):
    """OpenAI's request for a transcription."""

    language: Language | None = optional("The language of the audio, as an ISO 639 code or a name.")
    languages: list[Language] | None = optional("Languages that the audio may be in.", max_length=16, fail_fast=True)
    keywords: list[Words] | None = optional("Words and names that the audio may have.", max_length=256, fail_fast=True)
    include: list[Literal["logprobs"]] | None = optional("Log probabilities of the tokens.", max_length=1, fail_fast=True)
    stream: FormFlag | None = optional("Send server-sent events as text appears.")

    chunking_strategy: Annotated[Any, NoOp(because="a file is one piece; cut it in the client")] = None
    known_speaker_names: Annotated[Any, NoOp(because="speakers are not told apart")] = None
    known_speaker_references: Annotated[Any, NoOp(because="speakers are not told apart")] = None
    timestamp_granularities: Annotated[Any, NoOp(because="the models here give no timestamps")] = None

    @model_validator(mode="after")
    def _options_fit_together(self) -> Self:
        if self.include and self.is_text:
            raise at("include", "only allowed with the response_format json")
        if self.language is not None and self.languages is not None:
            raise at("languages", "not allowed together with language")
        return self


class InputTokenDetails(BaseModel):
    """The tokens of the prompt, by kind."""

    audio_tokens: int
    text_tokens: int


class TranscriptionUsage(BaseModel):
    """Token counts."""

    type: Literal["tokens"]
    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_token_details: InputTokenDetails


class TranscriptionLogprob(BaseModel):
    """Log probability of a token."""

    token: str
    bytes: list[int]
    logprob: float


class Transcription(BaseModel):
    """The answer in the format json."""

    text: str
    usage: TranscriptionUsage
    logprobs: list[TranscriptionLogprob] | None = optional("Present if include names them.")
