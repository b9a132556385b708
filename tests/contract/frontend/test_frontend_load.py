"""GenerationService.GetLoad: what a frontend knows of its engines, and what its encoders count."""

from __future__ import annotations

import asyncio

import grpc
from support.builders.frontend import chat_request, frontend_bench
from support.drivers.media_frontend import media_bench
from support.waiting import until
from triptych.v1 import common_pb2, encoder_pb2, engine_pb2, generation_pb2, generation_pb2_grpc

SERVING, AWAY = common_pb2.SERVER_STATE_SERVING, common_pb2.SERVER_STATE_UNAVAILABLE


async def load_of(channel: grpc.aio.Channel) -> generation_pb2.GetLoadResponse:
    stub = generation_pb2_grpc.GenerationServiceStub(channel)
    return await stub.GetLoad(generation_pb2.GetLoadRequest(), timeout=10)


async def test_engines_and_live_requests() -> None:
    async with frontend_bench() as bench:
        quiet = await load_of(bench.channel)
        await bench.engine.pause()
        call = asyncio.create_task(_collect(bench.chat(chat_request())))
        await until(lambda: len(bench.engine.requests) == 1)
        busy = await load_of(bench.channel)
        await bench.engine.resume()
        await call
    assert (quiet.instance.service, quiet.instance.state) == ("frontend", SERVING)
    assert (quiet.num_live_requests, busy.num_live_requests) == (0, 1)
    [engine] = quiet.engines
    assert (engine.instance.id, engine.instance.state) == (bench.engine.instance.id, SERVING)
    assert engine.HasField("load")
    assert not quiet.encoders


async def test_the_load_is_that_of_the_engines_last_message() -> None:
    async with frontend_bench() as bench:
        bench.engine.load = engine_pb2.Load(num_running=7, num_free_blocks=9)
        await _collect(bench.chat(chat_request()))
        [told] = (await load_of(bench.channel)).engines
    assert (told.load.num_running, told.load.num_free_blocks) == (7, 9)


async def test_an_engine_that_is_away_has_neither_id_nor_load() -> None:
    async with frontend_bench() as bench:
        await bench.engine.go_down()
        await bench.until_ready(False)
        [engine] = (await load_of(bench.channel)).engines
    assert (engine.instance.id, engine.instance.state, engine.HasField("load")) == ("", AWAY, False)


async def test_counts_of_an_encoder() -> None:
    async with media_bench() as bench:
        await until(lambda: bool(bench.bench.frontend._encoders.ready))
        bench.encoder.stats = encoder_pb2.GetStatsResponse(num_entries=3, used_bytes=10, capacity_bytes=20, queue_length=1)
        [encoder] = (await load_of(bench.bench.channel)).encoders
    assert (encoder.instance.id, encoder.instance.state) == (bench.encoder.instance.id, SERVING)
    assert encoder.stats == bench.encoder.stats


async def test_an_encoder_that_does_not_answer_has_no_counts() -> None:
    async with media_bench() as bench:
        await until(lambda: bool(bench.bench.frontend._encoders.ready))
        bench.encoder.answers = asyncio.Event()
        [encoder] = (await load_of(bench.bench.channel)).encoders
        bench.encoder.answers.set()
    assert encoder.instance.id == bench.encoder.instance.id
    assert not encoder.HasField("stats")


async def test_a_model_tells_the_media_that_it_takes() -> None:
    async with media_bench() as bench, frontend_bench() as text_only:
        capabilities = bench.bench.frontend.model_info().capabilities
        takes = capabilities.modalities
        assert (capabilities.max_choices, capabilities.max_logprobs) == (128, 20)
        assert capabilities.max_media_items == 16
        assert list(takes) == [common_pb2.MODALITY_IMAGE]
        assert not text_only.frontend.model_info().capabilities.modalities


async def _collect(call) -> list:
    return [response async for response in call]
