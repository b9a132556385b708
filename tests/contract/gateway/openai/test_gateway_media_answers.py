"""What answers and metrics tell of media."""

from __future__ import annotations

import base64
from typing import Any

import orjson
import pytest
from support.fakes.frontend import MODEL, FakeFrontend, says
from support.fakes.gateway import CHAT, events_of, gateway_client
from triptych.v1 import common_pb2, encoder_pb2, generation_pb2
from triptych_gateway.apis.chat.schema import ChatCompletion

_REPORT = generation_pb2.MediaReport(
    modality=common_pb2.MODALITY_IMAGE,
    key=b"\x01" * 32,
    num_tokens=5,
    tier=encoder_pb2.CACHE_TIER_MISS,
    encode=encoder_pb2.EncodeTimings(queue_s=0.001, decode_s=0.002, preprocess_s=0.003, encode_s=0.004),
    source=common_pb2.EMBEDDING_SOURCE_ENCODER,
    fetch_s=0.006,
    transfer_s=0.005,
)
_CACHED = generation_pb2.MediaReport(
    modality=common_pb2.MODALITY_AUDIO,
    key=b"\x02" * 32,
    num_tokens=2,
    tier=encoder_pb2.CACHE_TIER_LOCAL,
    source=common_pb2.EMBEDDING_SOURCE_PREFIX_CACHE,
)
_UNHEARD = generation_pb2.MediaReport(modality=common_pb2.MODALITY_VIDEO, key=b"\x03" * 32, num_tokens=9)
_USAGE = common_pb2.Usage(
    prompt_tokens=20, completion_tokens=3, cached_tokens=4, image_tokens=5, audio_tokens=2, video_tokens=9, cached_media_tokens=2
)
_TIMINGS = common_pb2.Timings(preprocess_s=0.001, queue_s=0.002, prefill_s=0.003, decode_s=0.004, num_preemptions=1)


def frontend() -> FakeFrontend:
    fake = FakeFrontend()
    fake.script = says("A ", "cat", usage=_USAGE, timings=_TIMINGS, media=[_REPORT, _CACHED, _UNHEARD])
    return fake


async def answer(stream: bool) -> dict[str, Any]:
    image = "data:image/png;base64," + base64.b64encode(b"picture").decode()
    content = [{"type": "image_url", "image_url": {"url": image}}, {"type": "text", "text": "What is it?"}]
    body = {"model": MODEL.name, "messages": [{"role": "user", "content": content}]}
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    async with gateway_client(frontend()) as client:
        response = await client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200
    whole: dict[str, Any] = orjson.loads(events_of(response.content)[-2] if stream else response.content)
    if not stream:
        ChatCompletion.model_validate(whole)
    return whole


@pytest.mark.parametrize("stream", [False, True])
async def test_each_item_is_reported(stream: bool) -> None:
    whole = await answer(stream)
    assert whole["usage"]["prompt_tokens_details"] == {
        "cached_tokens": 4,
        "image_tokens": 5,
        "audio_tokens": 2,
        "video_tokens": 9,
        "cached_media_tokens": 2,
    }
    image, audio, video = whole["triptych"]["media"]
    assert image == {
        "modality": "image",
        "key": "01" * 32,
        "num_tokens": 5,
        "encoder_cache": "miss",
        "source": "encoder",
        "queue_ms": 1.0,
        "decode_ms": 2.0,
        "preprocess_ms": 3.0,
        "encode_ms": 4.0,
        "transfer_ms": 5.0,
        "fetch_ms": 6.0,
    }
    assert (audio["modality"], audio["encoder_cache"], audio["source"]) == ("audio", "hit", "prefix_cache")
    assert (video["modality"], video["encoder_cache"], video["source"]) == ("video", None, None)
    assert whole["triptych"]["timings"] == {
        "preprocess_ms": 1.0,
        "queue_ms": 2.0,
        "prefill_ms": 3.0,
        "decode_ms": 4.0,
        "num_preemptions": 1,
    }


async def test_metrics_count_media() -> None:
    async with gateway_client(frontend()) as client:
        await client.post("/v1/chat/completions", json=CHAT)
        lines = (await client.get("/metrics")).text.splitlines()
    for line in (
        'triptych_gateway_media_tokens_total{modality="image"} 5.0',
        "triptych_gateway_cached_media_tokens_total 2.0",
        'triptych_gateway_media_items_total{encoder_cache="miss",modality="image"} 1.0',
        'triptych_gateway_media_items_total{encoder_cache="hit",modality="audio"} 1.0',
        'triptych_gateway_media_items_total{encoder_cache="unknown",modality="video"} 1.0',
    ):
        assert line in lines
