"""The cost of a request: its sum over all frontend calls, and its JSON in answers (usage, timings, reports on media)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field
from triptych.v1 import common_pb2, encoder_pb2, generation_pb2


@dataclass
class Cost:
    """Sums the usage of all calls. The last response of each call adds to it."""

    #: Sum over the calls.
    usage: common_pb2.Usage = field(default_factory=common_pb2.Usage)
    #: Timings of the slowest call; None if no call reported them.
    timings: common_pb2.Timings | None = None
    #: Reports on media items, in the order of the messages.
    media: list[generation_pb2.MediaReport] = field(default_factory=list)

    def add(self, response: generation_pb2.GenerationCallResponse) -> None:
        """Add a response. Only the last response of each call has a usage."""
        if not response.HasField("usage"):
            return
        for count in common_pb2.Usage.DESCRIPTOR.fields:
            setattr(self.usage, count.name, getattr(self.usage, count.name) + getattr(response.usage, count.name))
        if response.HasField("timings") and (self.timings is None or _seconds(response.timings) > _seconds(self.timings)):
            self.timings = response.timings
        self.media.extend(response.media)


def _seconds(timings: common_pb2.Timings) -> float:
    return timings.preprocess_s + timings.queue_s + timings.prefill_s + timings.decode_s


#: Modality -> its name in reports and metrics.
MODALITIES = {common_pb2.MODALITY_IMAGE: "image", common_pb2.MODALITY_AUDIO: "audio", common_pb2.MODALITY_VIDEO: "video"}
#: Where the encoder found an item -> its name; None if the answer was complete before the encoder replied.
_ENCODER_CACHE = {
    encoder_pb2.CACHE_TIER_UNSPECIFIED: None,
    encoder_pb2.CACHE_TIER_MISS: "miss",
    encoder_pb2.CACHE_TIER_LOCAL: "hit",
    encoder_pb2.CACHE_TIER_SHARED: "shared",
    encoder_pb2.CACHE_TIER_JOINED: "joined",
}
#: How the embeddings of an item came -> its name; None if that is not known.
_SOURCES = {0: None} | {
    source: name[len("EMBEDDING_SOURCE_") :].lower() for name, source in common_pb2.EmbeddingSource.items() if source
}


def encoder_cache(report: generation_pb2.MediaReport) -> str | None:
    """Where the encoder found the embeddings: hit, miss, joined (another request was already computing them) or shared (store)."""
    return _ENCODER_CACHE.get(report.tier)


def usage_json(usage: common_pb2.Usage) -> dict[str, Any]:
    """OpenAI's usage object."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {name: getattr(usage, name) for name in PromptTokensDetails.model_fields},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def triptych_json(cost: Cost) -> dict[str, Any]:
    """The `triptych` extension of an answer."""
    return {"media": [_media_json(report) for report in cost.media], "timings": _timings_json(cost.timings)}


def _media_json(report: generation_pb2.MediaReport) -> dict[str, Any]:
    return {
        "modality": MODALITIES.get(report.modality),
        "key": report.key.hex(),
        "num_tokens": report.num_tokens,
        "encoder_cache": encoder_cache(report),
        "source": _SOURCES.get(report.source),
        **{f"{stage}_ms": _ms(getattr(report.encode, f"{stage}_s")) for stage in ("queue", "decode", "preprocess", "encode")},
        "transfer_ms": _ms(report.transfer_s),
        "fetch_ms": _ms(report.fetch_s),
    }


def _timings_json(timings: common_pb2.Timings | None) -> dict[str, Any] | None:
    if timings is None:
        return None
    stages = {f"{stage}_ms": _ms(getattr(timings, f"{stage}_s")) for stage in ("preprocess", "queue", "prefill", "decode")}
    return {**stages, "num_preemptions": timings.num_preemptions}


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)


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
