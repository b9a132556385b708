"""The cost of a request as JSON: OpenAI's usage, and the extension `triptych` with timings and a report on each media item."""

from __future__ import annotations

from typing import Any

from triptych.v1 import common_pb2, encoder_pb2, generation_pb2

from triptych_gateway.dialects.cost import Cost

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
_SOURCES = {
    common_pb2.EMBEDDING_SOURCE_UNSPECIFIED: None,
    common_pb2.EMBEDDING_SOURCE_ENCODER: "encoder",
    common_pb2.EMBEDDING_SOURCE_ENGINE: "engine",
    common_pb2.EMBEDDING_SOURCE_PREFIX_CACHE: "prefix_cache",
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
        "prompt_tokens_details": {
            "cached_tokens": usage.cached_tokens,
            "image_tokens": usage.image_tokens,
            "audio_tokens": usage.audio_tokens,
            "video_tokens": usage.video_tokens,
            "cached_media_tokens": usage.cached_media_tokens,
        },
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
        "queue_ms": _ms(report.encode.queue_s),
        "decode_ms": _ms(report.encode.decode_s),
        "preprocess_ms": _ms(report.encode.preprocess_s),
        "encode_ms": _ms(report.encode.encode_s),
        "transfer_ms": _ms(report.transfer_s),
        "fetch_ms": _ms(report.fetch_s),
    }


def _timings_json(timings: common_pb2.Timings | None) -> dict[str, Any] | None:
    if timings is None:
        return None
    return {
        "preprocess_ms": _ms(timings.preprocess_s),
        "queue_ms": _ms(timings.queue_s),
        "prefill_ms": _ms(timings.prefill_s),
        "decode_ms": _ms(timings.decode_s),
        "num_preemptions": timings.num_preemptions,
    }


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)
