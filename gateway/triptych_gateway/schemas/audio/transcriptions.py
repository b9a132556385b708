"""POST /v1/audio/transcriptions and /v1/audio/translations: requests and answers. Every field of OpenAI's API is declared."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, Field, model_validator

from triptych_gateway.schemas.audio.forms import FormFile, FormFlag, FormNumber
from triptych_gateway.schemas.common import NoOp, Schema, at, refuse

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
    prompt: Annotated[str | None, Field(description="What the audio is about, or the text before it.")] = None
    response_format: Annotated[
        Annotated[Literal["json", "text"], BeforeValidator(_no_times, json_schema_input_type=Literal["json", "text"])] | None,
        Field(description="json or text. Formats with timestamps are refused. Default json."),
    ] = None
    temperature: Annotated[
        Annotated[FormNumber, Field(ge=0, le=1)] | None, Field(description="0 to 1. Divides the logits; 0 is greedy. Default 0.")
    ] = None

    @property
    def is_text(self) -> bool:
        """Whether the answer is plain text."""
        return self.response_format == "text"


class TranslationRequest(AudioRequest):
    """OpenAI's request for a translation into English."""


class TranscriptionRequest(AudioRequest):
    """OpenAI's request for a transcription."""

    language: Annotated[Language | None, Field(description="The language of the audio, as an ISO 639 code or a name.")] = None
    languages: Annotated[
        list[Language] | None, Field(max_length=16, fail_fast=True, description="Languages that the audio may be in.")
    ] = None
    keywords: Annotated[
        list[Words] | None, Field(max_length=256, fail_fast=True, description="Words and names that the audio may have.")
    ] = None
    include: Annotated[
        list[Literal["logprobs"]] | None, Field(max_length=1, fail_fast=True, description="Log probabilities of the tokens.")
    ] = None
    stream: Annotated[FormFlag | None, Field(description="Send server-sent events as text appears.")] = None

    chunking_strategy: Annotated[Any, NoOp(because="a file is one piece; cut it in the client")] = None
    known_speaker_names: Annotated[Any, NoOp(because="speakers are not told apart")] = None
    known_speaker_references: Annotated[Any, NoOp(because="speakers are not told apart")] = None
    timestamp_granularities: Annotated[Any, NoOp(because="the models here give no timestamps")] = None

    @property
    def with_logprobs(self) -> bool:
        """Whether the answer has the log probabilities of its tokens."""
        return bool(self.include)

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
    logprobs: Annotated[list[TranscriptionLogprob] | None, Field(description="Present if include names them.")] = None
