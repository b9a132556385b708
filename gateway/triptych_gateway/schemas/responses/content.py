"""The content parts of input items."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from triptych_gateway.schemas.common import HistorySchema, NoOp, Schema, optional, refuse
from triptych_gateway.schemas.conversation import MAX_PARTS, InputAudio


class InputText(HistorySchema):
    """Text."""

    type: Literal["input_text"]
    text: str
    prompt_cache_breakpoint: Annotated[Any, NoOp()] = None


class InputImage(HistorySchema):
    """An image, by URL."""

    type: Literal["input_image"]
    image_url: str | None = optional("https:, http: or data:, or file: if it is allowed.", min_length=1)
    detail: Literal["low", "high", "auto"] | None = optional("How finely it is looked at, for models with several resolutions.")
    file_id: Annotated[Any, NoOp()] = None
    prompt_cache_breakpoint: Annotated[Any, NoOp()] = None

    @model_validator(mode="after")
    def _has_url(self) -> Self:
        if self.image_url is None:
            raise refuse("image_url is required")
        return self


class InputVideo(HistorySchema):
    """A video, by URL."""

    type: Literal["input_video"]
    video_url: Annotated[str, Field(min_length=1, description="https:, http: or data:, or file: if it is allowed.")]


class InputAudioPart(HistorySchema):
    """Audio, inline. An extension of OpenAI's items, with the part of its chat completions."""

    type: Literal["input_audio"]
    input_audio: InputAudio


class InputFile(Schema):
    """A document. It is known and not supported."""

    type: Literal["input_file"]

    @model_validator(mode="before")
    @classmethod
    def _refused(cls, value: Any) -> Any:
        raise refuse("parts of type 'input_file' are not served", "unsupported")


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


def _content_kind(value: Any) -> str:
    return "parts" if isinstance(value, list) else "text"


Content = Annotated[
    Annotated[str, Tag("text")] | Annotated[list[Part], Field(max_length=MAX_PARTS, fail_fast=True), Tag("parts")],
    Discriminator(_content_kind),
]
