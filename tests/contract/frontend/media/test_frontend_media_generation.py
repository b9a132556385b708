"""Calls with media through a real frontend, between a fake engine that fetches and a fake encoder, all on real gRPC."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from support.builders.frontend import joined
from support.drivers.media_frontend import IMAGE, KEY, OTHER, PICTURE, media_bench, request
from support.waiting import until
from triptych.errors import (
    InvalidRequestError,
)
from triptych.v1 import common_pb2, encoder_pb2, generation_pb2
from triptych_frontend.encoders import encoding


async def test_an_image_is_encoded_fetched_and_answered() -> None:
    async with media_bench() as bench:
        call = bench.call(PICTURE, "What is this?")
        responses = [response async for response in call]
        trailers = [value for key, value in await call.trailing_metadata() if key == "triptych-media-bin"]
        (engine_request,) = bench.engine.requests
        await bench.until_nothing_is_left()
    assert joined(responses)
    (ref,), (found,) = engine_request.media, engine_request.placeholders
    assert (ref.key, found.length, found.media_index) == (KEY, 16, 0)
    usage, (report,) = responses[-1].usage, responses[-1].media
    assert (usage.image_tokens, usage.audio_tokens, usage.cached_media_tokens) == (16, 0, 0)
    assert (report.modality, report.key, report.num_tokens) == (IMAGE, KEY, 16)
    assert (report.tier, report.source) == (encoder_pb2.CACHE_TIER_MISS, common_pb2.EMBEDDING_SOURCE_ENCODER)
    assert (report.fetch_s, report.transfer_s > 0) == (0.5, True)
    assert [generation_pb2.MediaReport.FromString(value) for value in trailers] == [report]
    assert bench.encoder.counts == {"key": 1, "bytes": 1, "fetch": 1}
    assert len(bench.encoder.released) == 1, "what was fetched needs no lease"


async def test_the_same_image_again_is_neither_sent_nor_fetched() -> None:
    async with media_bench() as bench:
        await bench.chat(PICTURE, "What is this?")
        responses = await bench.chat(PICTURE, "And which colour?")
        await bench.until_nothing_is_left()
    (report,) = responses[-1].media
    assert (report.tier, report.source) == (encoder_pb2.CACHE_TIER_LOCAL, common_pb2.EMBEDDING_SOURCE_PREFIX_CACHE)
    assert responses[-1].usage.cached_media_tokens == 16
    assert bench.encoder.counts == {"key": 2, "bytes": 1, "fetch": 1}


async def test_choices_share_the_media() -> None:
    async with media_bench() as bench:
        responses = await bench.chat(PICTURE, OTHER, PICTURE, "Compare them.", n=3)
        requests = bench.engine.requests
        await bench.until_nothing_is_left()
    assert [len(response.media) for response in responses if response.HasField("usage")] == [3]
    assert responses[-1].usage.image_tokens == 48
    (request,) = requests
    assert (request.n, len(request.media)) == (3, 3)
    assert bench.encoder.counts["bytes"] == 2


async def test_the_engine_has_the_sequence_before_the_embeddings_exist() -> None:
    async with media_bench() as bench:
        bench.encoder.gate = asyncio.Event()
        answer = asyncio.create_task(bench.chat(PICTURE, "What is this?"))
        await bench.engine.until(lambda: bool(bench.engine.requests))
        assert not bench.encoder.held
        assert joined(await bench.chat("Text meanwhile"))
        bench.encoder.gate.set()
        assert joined(await answer)
        await bench.until_nothing_is_left()
    assert bench.engine.counts == {"fetch": 1}


async def test_an_answer_waits_for_the_encoders_reply_which_may_be_behind_its_embeddings() -> None:
    async with media_bench() as bench:
        bench.encoder.replies = asyncio.Event()
        answer = asyncio.create_task(bench.chat(PICTURE, "What is this?"))
        await until(lambda: bool(bench.engine.requests) and not bench.engine.live)
        bench.encoder.replies.set()
        responses = await answer
        await bench.until_nothing_is_left()
    (report,) = responses[-1].media
    assert (report.tier, report.source) == (encoder_pb2.CACHE_TIER_MISS, common_pb2.EMBEDDING_SOURCE_ENCODER)
    assert len(bench.encoder.released) == 1


async def test_an_answer_waits_only_a_moment_for_an_encoder_that_does_not_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "_REPLY_S", 0.05)
    async with media_bench() as bench:
        bench.encoder.replies = asyncio.Event()
        responses = await bench.chat(PICTURE, "What is this?")
        await bench.until_nothing_is_left()
    (report,) = responses[-1].media
    assert joined(responses)
    assert (report.tier, report.source) == (encoder_pb2.CACHE_TIER_UNSPECIFIED, common_pb2.EMBEDDING_SOURCE_ENCODER)


async def test_a_bad_item_fails_its_call_and_names_itself() -> None:
    async with media_bench() as bench:
        bench.encoder.gate = asyncio.Event()
        bench.encoder.item_errors = [InvalidRequestError("the image is truncated", field="data")]
        error = asyncio.create_task(bench.error("Look:", PICTURE))
        await bench.engine.until(lambda: bool(bench.engine.requests))
        bench.encoder.gate.set()
        refused = await error
        assert joined(await bench.chat("Hi"))
        await bench.until_nothing_is_left()
    assert isinstance(refused, InvalidRequestError)
    assert refused.message == "messages[0].content[1].media: the image is truncated"
    assert refused.field == "messages[0].content[1].media"
    assert not bench.counts["resubmitted"]


async def test_a_client_that_leaves_leaves_nothing() -> None:
    async with media_bench() as bench:
        bench.encoder.gate = asyncio.Event()
        call = bench.call(PICTURE, "What is this?")
        await bench.engine.until(lambda: bool(bench.engine.requests))
        call.cancel()
        await bench.until_nothing_is_left()
        assert not bench.encoder.held
        bench.encoder.gate.set()
        assert joined(await bench.chat(PICTURE, "What is this?"))
        await bench.until_nothing_is_left()


async def test_sessions_report_media_too() -> None:
    async with media_bench() as bench:
        call = generation_pb2.GenerationCall(number=7, request_id="r", chat=request(PICTURE, "What is this?"))
        stream = bench.bench.generation.Session()
        await stream.write(generation_pb2.GenerationServiceSessionRequest(start=[call]))
        reports: list[generation_pb2.MediaReport] = []
        while not reports:
            message = await stream.read()
            reports = [report for response in message.responses for report in response.media]
        await stream.done_writing()
        await bench.until_nothing_is_left()
    assert [report.key for report in reports] == [KEY]


async def test_metrics_tell_tiers_and_fallbacks() -> None:
    async with media_bench(metrics_port=0) as bench:
        bench.encoder.num_lost_before_fetch = 1
        await bench.chat(PICTURE, "What is this?")
        await bench.until_nothing_is_left()
        port = bench.bench.frontend.server.metrics_port
        async with httpx.AsyncClient(trust_env=False) as client:
            lines = (await client.get(f"http://127.0.0.1:{port}/metrics")).text.splitlines()
    for line in (
        "triptych_frontend_ready 1.0",
        "triptych_frontend_live_requests 0.0",
        "triptych_frontend_encoders_connected 1.0",
        'triptych_frontend_media_items_total{tier="miss"} 2.0',
        "triptych_frontend_media_uploads_total 2.0",
        'triptych_frontend_media_fallbacks_total{step="again"} 1.0',
        'triptych_frontend_media_fallbacks_total{step="failed"} 0.0',
    ):
        assert line in lines
