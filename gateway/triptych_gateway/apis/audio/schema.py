"""POST /v1/audio/transcriptions and /v1/audio/translations: requests, which are forms, and answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, Self, get_args, get_origin

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


_TIMED = ("srt", "verbose_json", "vtt")


def _no_speakers(value: Any) -> Any:
    if value == "diarized_json":
        raise refuse("diarized_json needs speakers, which are not told apart here; send verbose_json", "unsupported")
    return value


def _no_words(value: Any) -> Any:
    if value == "word":
        raise refuse("no model here gives the times of words; send segment", "unsupported")
    return value


ResponseFormat = Annotated[
    Literal["json", "text", "srt", "verbose_json", "vtt"],
    BeforeValidator(_no_speakers, json_schema_input_type=Literal["json", "text", "srt", "verbose_json", "vtt"]),
]
Granularity = Annotated[Literal["segment"], BeforeValidator(_no_words, json_schema_input_type=Literal["segment"])]
Words = Annotated[str, Field(min_length=1, max_length=256)]
Language = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z -]{1,31}$")]


class AudioRequest(Schema):
    """The fields that both requests have."""

    file: Annotated[
        FormFile, Field(description="The audio file. If its name has the ending of a sound format, it must be of that format.")
    ]
    model: Annotated[str, Field(description="A name from /v1/models, of a model that takes audio.")]
    prompt: str | None = optional("What the audio is about, or the text before it.")
    response_format: ResponseFormat | None = optional(
        "json or text; or, with times of segments, verbose_json, srt or vtt. Default json."
    )
    temperature: Annotated[FormNumber, Field(ge=0, le=1)] | None = optional("0 to 1. Divides the logits; 0 is greedy. Default 0.")

    #: What verbose_json calls the work, and its language.
    task: ClassVar[str]

    @property
    def language_of_text(self) -> str:
        """The language that the answer is in, as far as it is known."""
        return "english"

    # Only transcriptions are streamed, and have log probabilities.
    @property
    def is_stream(self) -> bool:
        """Whether the answer is sent as events."""
        return bool(getattr(self, "stream", None))

    @property
    def with_logprobs(self) -> bool:
        """Whether the answer needs the log probabilities of its tokens."""
        return bool(getattr(self, "include", None)) or self.response_format == "verbose_json"

    @property
    def is_timed(self) -> bool:
        """Whether the answer has times."""
        return self.response_format in _TIMED

    @property
    def is_text(self) -> bool:
        """Whether the answer is plain text."""
        return self.response_format in ("text", "srt", "vtt")


class TranslationRequest(AudioRequest):
    """OpenAI's request for a translation into English."""

    task = "translate"


class TranscriptionRequest(AudioRequest):
    """OpenAI's request for a transcription."""

    task = "transcribe"

    language: Language | None = optional("The language of the audio, as an ISO 639 code or a name.")
    languages: list[Language] | None = optional("Languages that the audio may be in.", max_length=16, fail_fast=True)
    keywords: list[Words] | None = optional("Words and names that the audio may have.", max_length=256, fail_fast=True)
    include: list[Literal["logprobs"]] | None = optional("Log probabilities of the tokens.", max_length=1, fail_fast=True)
    stream: FormFlag | None = optional("Send server-sent events as text appears.")

    timestamp_granularities: list[Granularity] | None = optional(
        "segment, with verbose_json. Times of words are refused: no model here gives them.", max_length=1, fail_fast=True
    )
    chunking_strategy: Literal["auto"] | None = optional(
        "auto: what happens in any case. A file of more than 30 s is cut where it is quiet."
    )

    known_speaker_names: Annotated[Any, NoOp(because="speakers are not told apart")] = None
    known_speaker_references: Annotated[Any, NoOp(because="speakers are not told apart")] = None

    @property
    def language_of_text(self) -> str:
        return self.language or "unknown"

    @model_validator(mode="after")
    def _options_fit_together(self) -> Self:
        if self.include and self.response_format not in (None, "json"):
            raise at("include", "only allowed with the response_format json")
        if self.timestamp_granularities and self.response_format != "verbose_json":
            raise at("timestamp_granularities", "only allowed with the response_format verbose_json")
        if self.stream and self.is_timed:
            raise at("stream", f"not allowed with the response_format {self.response_format}, which is sent whole")
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


class TranscriptionSegment(BaseModel):
    """A part of the speech."""

    id: int
    seek: Annotated[int, Field(description="Where the sound begins that the model was given, in hundredths of a second.")]
    start: Annotated[float, Field(description="In seconds.")]
    end: Annotated[float, Field(description="In seconds.")]
    text: str
    tokens: Annotated[list[int], Field(description="Empty if the model marks several segments in a piece of the sound.")]
    temperature: float
    avg_logprob: Annotated[float | None, Field(description="Mean log probability of the tokens.")]
    compression_ratio: Annotated[float, Field(description="Bytes of the text, divided by its bytes compressed by zlib.")]
    no_speech_prob: Annotated[None, Field(description="null: models here do not tell it.")]


class DurationUsage(BaseModel):
    """Length of the file."""

    type: Literal["duration"]
    seconds: int


class VerboseTranscription(BaseModel):
    """The answer in the format verbose_json."""

    task: Literal["transcribe", "translate"]
    language: Annotated[str, Field(description="The language of the request, or unknown; english for a translation.")]
    duration: Annotated[float, Field(description="In seconds.")]
    text: str
    segments: list[TranscriptionSegment]
    usage: DurationUsage
