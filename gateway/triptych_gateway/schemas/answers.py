"""The cost of a request in answers: usage, timings, media reports."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field


class PromptTokensDetails(BaseModel):
    """The tokens of the prompt, by kind."""

    cached_tokens: int
    image_tokens: int
    audio_tokens: int
    video_tokens: int
    cached_media_tokens: Annotated[int, Field(description="Tokens of media that came from the prefix cache.")]


class CompletionTokensDetails(BaseModel):
    """The tokens of the output, by kind."""

    reasoning_tokens: int


class Usage(BaseModel):
    """Token counts of a whole request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class PromptLogprob(BaseModel):
    """Log probability of one token at a position of the prompt."""

    logprob: float
    rank: Annotated[int, Field(description="1 for the likeliest token.")]
    decoded_token: str


#: One entry per prompt token: token id -> log probability, for the token itself and the likeliest ones. null for the first token.
PromptLogprobs = list[dict[str, PromptLogprob] | None]


class MediaReport(BaseModel):
    """The cost of one media item of the prompt. Reports are in the order of the messages."""

    modality: Literal["image", "audio", "video"]
    key: Annotated[str, Field(description="Of the encoder's cache, in hex: content, processor options, model, tenant.")]
    num_tokens: int
    encoder_cache: Annotated[
        Literal["hit", "miss", "joined", "shared"] | None,
        Field(description="Where the encoder found the embeddings; null when the answer did not have to wait for it."),
    ]
    source: Annotated[
        Literal["encoder", "engine", "prefix_cache"] | None, Field(description="How the embeddings came to the first choice.")
    ]
    queue_ms: float
    decode_ms: float
    preprocess_ms: float
    encode_ms: float
    transfer_ms: Annotated[float, Field(description="Of the file to the encoder.")]
    fetch_ms: Annotated[float, Field(description="Of the embeddings to the engine, waiting for the encoder included.")]


class AnswerTimings(BaseModel):
    """Timings of the slowest choice."""

    preprocess_ms: float
    queue_ms: float
    prefill_ms: float
    decode_ms: float
    num_preemptions: int


class TriptychExtension(BaseModel):
    """Information beyond OpenAI's answers. A stream has it on the chunk with the usage."""

    media: list[MediaReport]
    timings: AnswerTimings | None
