"""Calls with media through a real frontend, between a fake engine that fetches and a fake encoder, all on real gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest
import support.builders.media_files as media
from grpc.aio import AioRpcError
from support.builders.frontend import Bench, chat_request, frontend_bench, joined
from support.fakes.encoder import SCOPE, FakeEncoder
from support.fakes.engine import says
from support.fakes.grpc_server import serving
from support.fakes.media_engine import FakeMediaEngine
from support.fakes.waiting import until
from triptych_common.media.key import media_key
from triptych_common.model.store import model_info
from triptych_common.pb import common_pb2, encoder_pb2, engine_pb2, generation_pb2
from triptych_common.rpc.errors import (
    EmbeddingUnavailableError,
    InvalidRequestError,
    QueueFullError,
    ServiceUnavailableError,
    TriptychError,
)
from triptych_common.rpc.status import from_rpc_error, to_request_error

IMAGE = common_pb2.MODALITY_IMAGE
Item = common_pb2.MediaItem
PICTURE, OTHER = media.image(), media.image(20, 50)
KEY = media_key(SCOPE, IMAGE, PICTURE)


class MediaBench:
    """A frontend of a small LLaVA, with its fakes."""

    def __init__(self, bench: Bench, encoder: FakeEncoder) -> None:
        self.bench, self.encoder = bench, encoder
        assert isinstance(bench.engine, FakeMediaEngine)
        self.engine = bench.engine
        self.counts = bench.frontend._encoder_client.counts

    async def chat(self, *parts: str | bytes | Item, **options: Any) -> list[generation_pb2.ChatResponse]:
        return [response async for response in self.call(*parts, **options)]

    def call(self, *parts: str | bytes | Item, **options: Any) -> Any:
        return self.bench.generation.Chat(request(*parts, **options))

    async def error(self, *parts: str | bytes | Item) -> TriptychError:
        with pytest.raises(AioRpcError) as caught:
            await self.chat(*parts)
        return from_rpc_error(caught.value)

    async def until_nothing_is_left(self) -> None:
        await until(lambda: not self.bench.frontend.num_live_requests and not self.engine.live)
        await self.bench.frontend._encoder_client.close()


def request(*parts: str | bytes | Item, **options: Any) -> generation_pb2.ChatRequest:
    content = [
        generation_pb2.ContentPart(text=part)
        if isinstance(part, str)
        else generation_pb2.ContentPart(media=part if isinstance(part, Item) else Item(modality=IMAGE, data=part))
        for part in parts
    ]
    return chat_request(
        messages=[generation_pb2.ChatMessage(role="user", content=content)],
        options=generation_pb2.GenerationOptions(**options),
    )


@asynccontextmanager
async def media_bench(**settings: Any) -> AsyncIterator[MediaBench]:
    path = media.checkpoint("llava_siglip")
    encoder = FakeEncoder(model_info(path, path.name), lambda item: 16)
    async with (
        serving(encoder.register) as address,
        frontend_bench(
            says([20, 21, 22]), model=path, engine_class=FakeMediaEngine, encoder_addresses=(address,), **settings
        ) as bench,
    ):
        yield MediaBench(bench, encoder)


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
    assert len(requests) == 3
    assert all(one.media == requests[0].media and one.placeholders == requests[0].placeholders for one in requests)
    assert len({one.request_id for one in requests}) == 3
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


@pytest.mark.parametrize("num_choices", [1, 3])
async def test_embeddings_lost_before_they_were_fetched_are_made_again(num_choices: int) -> None:
    async with media_bench() as bench:
        bench.encoder.num_lost_before_fetch = 1
        responses = await bench.chat(PICTURE, "What is this?", n=num_choices)
        await bench.until_nothing_is_left()
    assert {choice.index for response in responses for choice in response.choices} == set(range(num_choices))
    assert bench.encoder.counts["bytes"] == 2
    assert (bench.counts["again"], bench.counts["failed"]) == (1, 0)
    assert bench.counts["resubmitted"] >= 1


async def test_embeddings_that_are_lost_each_time_end_the_call() -> None:
    async with media_bench() as bench:
        bench.encoder.num_lost_before_fetch = 99
        error = await bench.error(PICTURE, "What is this?")
        bench.encoder.num_lost_before_fetch = 0
        assert joined(await bench.chat(PICTURE, "And now?"))
        await bench.until_nothing_is_left()
    assert isinstance(error, ServiceUnavailableError)
    assert error.message == "messages[0].content[0].media: the encoder does not hold it"
    assert error.field == "messages[0].content[0].media"
    assert (bench.counts["resubmitted"], bench.counts["failed"]) == (3, 1)


@pytest.mark.parametrize(
    ("errors", "expected"), [([QueueFullError("full", retry_after_s=2)] * 9, QueueFullError), ([], ServiceUnavailableError)]
)
async def test_an_encoder_that_cannot_ends_the_call_alone(errors: list[TriptychError], expected: type[TriptychError]) -> None:
    async with media_bench() as bench:
        bench.encoder.call_errors = list(errors) or [ServiceUnavailableError("the encoder is stopping")] * 9
        error = await bench.error(PICTURE, "What is this?")
        assert joined(await bench.chat("Hi"))
        await bench.until_nothing_is_left()
        assert not bench.engine.live
    assert type(error) is expected
    assert error.field == "messages[0].content[0].media"
    assert bench.counts["failed"] == 1


async def test_an_encoder_killed_while_it_encodes() -> None:
    path = media.checkpoint("llava_siglip")
    encoder = FakeEncoder(model_info(path, path.name), lambda item: 16)
    encoder.gate = asyncio.Event()
    async with serving(encoder.register, 0) as address:
        pass
    port = int(address.rpartition(":")[2])
    async with frontend_bench(says([20]), model=path, engine_class=FakeMediaEngine, encoder_addresses=(address,)) as found:
        async with serving(encoder.register, port):
            bench = MediaBench(found, encoder)
            answer = asyncio.create_task(bench.error(PICTURE, "What is this?"))
            await bench.engine.until(lambda: bool(bench.engine.requests))
        error = await answer
        assert joined(await bench.chat("Text meanwhile"))
        encoder.gate.set()
        async with serving(encoder.register, port):
            assert joined(await bench.chat(PICTURE, "What is this?"))
            await bench.until_nothing_is_left()
    assert isinstance(error, ServiceUnavailableError)
    assert error.retry_after_s is not None


async def test_an_encoder_killed_while_it_encodes_has_a_successor() -> None:
    path = media.checkpoint("llava_siglip")
    encoders = [FakeEncoder(model_info(path, path.name), lambda item: 16) for _ in range(2)]
    for encoder in encoders:
        encoder.gate = asyncio.Event()
    async with AsyncExitStack() as stack:
        servers = [AsyncExitStack() for _ in encoders]
        addresses = []
        for encoder, server in zip(encoders, servers, strict=True):
            stack.push_async_exit(server)
            addresses.append(await server.enter_async_context(serving(encoder.register)))
        found = await stack.enter_async_context(
            frontend_bench(says([20]), model=path, engine_class=FakeMediaEngine, encoder_addresses=tuple(addresses))
        )
        await until(lambda: len(found.frontend._encoders.connected) == 2)
        answer = asyncio.create_task(MediaBench(found, encoders[0]).chat(PICTURE, "What is this?"))
        await found.engine.until(lambda: bool(found.engine.requests))
        await until(lambda: any(encoder.counts["bytes"] for encoder in encoders))
        home = next(index for index, encoder in enumerate(encoders) if encoder.counts["bytes"])
        encoders[1 - home].gate.set()
        await servers[home].aclose()
        responses = await answer
    assert joined(responses)
    assert encoders[1 - home].counts == {"key": 1, "bytes": 1, "fetch": 1}
    first, second = found.engine.requests
    assert (first.media[0].encoder_address, second.media[0].encoder_address) == (addresses[home], addresses[1 - home])


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


async def test_bytes_and_leases_are_held_until_the_first_token() -> None:
    async with media_bench() as bench:
        await bench.engine.pause()
        answer = asyncio.create_task(bench.chat(PICTURE, "What is this?"))
        await until(lambda: bench.encoder.counts["fetch"] == 1)
        assert bench.encoder.released == []
        await bench.engine.pause(after_steps=1)
        await until(lambda: len(bench.encoder.released) == 1)
        assert bench.engine.live, "it goes on"
        await bench.engine.resume()
        await answer
        await bench.until_nothing_is_left()


async def test_a_name_whose_embeddings_are_gone_asks_for_the_item() -> None:
    async with media_bench() as bench:
        await bench.chat(Item(modality=IMAGE, data=PICTURE, uuid="cat"), "What is this?")
        assert joined(await bench.chat(Item(modality=IMAGE, uuid="cat"), "And now?"))
        bench.encoder.held.clear()
        bench.engine.prefix_cached.clear()
        error = await bench.error(Item(modality=IMAGE, uuid="cat"), "And now?")
        await bench.until_nothing_is_left()
    assert isinstance(error, InvalidRequestError)
    assert error.field == "messages[0].content[0].media.uuid"
    assert "send the item itself" in error.message


async def test_an_engine_that_goes_away_ends_the_call() -> None:
    async with media_bench() as bench:
        bench.encoder.gate = asyncio.Event()
        error = asyncio.create_task(bench.error(PICTURE, "What is this?"))
        await bench.engine.until(lambda: bool(bench.engine.requests))
        await bench.engine.go_down()
        assert isinstance(await error, ServiceUnavailableError)
        await bench.engine.come_back()
        await bench.bench.until_ready()
        bench.encoder.gate.set()
        assert joined(await bench.chat(PICTURE, "What is this?"))
        await bench.until_nothing_is_left()


async def test_calls_with_media_take_a_place() -> None:
    async with media_bench(max_live_requests=1) as bench:
        bench.encoder.gate = asyncio.Event()
        answer = asyncio.create_task(bench.chat(PICTURE, "What is this?"))
        await until(lambda: bench.encoder.counts["bytes"] == 1)
        assert isinstance(await bench.error("Hi"), QueueFullError)
        bench.encoder.gate.set()
        await answer


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


async def test_metrics_tell_tiers_and_rungs() -> None:
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
        'triptych_frontend_media_rungs_total{rung="again"} 1.0',
        'triptych_frontend_media_rungs_total{rung="failed"} 0.0',
    ):
        assert line in lines


async def test_files_of_live_calls_are_bounded() -> None:
    async with media_bench(max_live_media_bytes=len(PICTURE) + len(OTHER) - 1) as bench:
        budget = bench.bench.frontend._media.budget
        bench.encoder.gate = asyncio.Event()
        answer = asyncio.create_task(bench.chat(PICTURE, "What is this?"))
        await until(lambda: bench.encoder.counts["bytes"] == 1)
        error = await bench.error("And this?", OTHER)
        assert joined(await bench.chat("Text meanwhile"))
        bench.encoder.gate.set()
        await answer
        assert joined(await bench.chat("And this?", OTHER))
        too_much = await bench.error(PICTURE, OTHER)
        await bench.until_nothing_is_left()
    assert isinstance(error, QueueFullError)
    assert error.field == "messages[0].content[1].media"
    assert error.retry_after_s
    assert isinstance(too_much, InvalidRequestError), "waiting would not help"
    assert budget.used_bytes == 0


async def test_files_of_sessions_are_let_go_at_the_first_token() -> None:
    async with media_bench() as bench:
        budget = bench.bench.frontend._media.budget
        await bench.engine.pause()
        call = generation_pb2.GenerationCall(number=7, request_id="r", chat=request(PICTURE, "What is this?"))
        stream = bench.bench.generation.Session()
        await stream.write(generation_pb2.GenerationServiceSessionRequest(start=[call]))
        await until(lambda: bench.encoder.counts["fetch"] == 1)
        assert budget.used_bytes == len(PICTURE)
        await bench.engine.pause(after_steps=1)
        await until(lambda: budget.used_bytes == 0)
        assert bench.engine.live, "it goes on"
        await bench.engine.resume()
        await stream.done_writing()
        await bench.until_nothing_is_left()


@pytest.mark.parametrize(
    "parts",
    [
        (PICTURE, b"no picture"),
        (PICTURE, Item(modality=IMAGE, url="https://127.0.0.1/a.png")),
        (PICTURE, "word " * 5000),
        (PICTURE, Item(modality=IMAGE, url="data:image/png;base64,")),
    ],
    ids=["bad", "forbidden", "too-long", "empty"],
)
async def test_files_of_calls_that_fail_are_let_go(parts: tuple[str | bytes | Item, ...]) -> None:
    async with media_bench() as bench:
        assert isinstance(await bench.error(*parts), InvalidRequestError)
        await bench.until_nothing_is_left()
        assert bench.bench.frontend._media.budget.used_bytes == 0


async def test_embeddings_lost_after_the_first_token_end_the_call_in_words() -> None:
    lost = to_request_error(EmbeddingUnavailableError("media[0]: the encoder does not hold it", field="media[0]"))
    outputs = [
        engine_pb2.SequenceOutput(token_ids=[20]),
        engine_pb2.SequenceOutput(finish_reason=common_pb2.FINISH_REASON_ERROR, error=lost),
    ]
    async with media_bench() as bench:
        bench.engine.script = lambda request: [engine_pb2.SequenceOutput.FromString(one.SerializeToString()) for one in outputs]
        error = await bench.error(PICTURE, "What is this?")
        await bench.until_nothing_is_left()
        bench.engine.script = says([20, 21, 22])
        assert joined(await bench.chat(PICTURE, "And now?"))
    assert isinstance(error, ServiceUnavailableError)
    assert error.message == "messages[0].content[0].media: the encoder does not hold it"
    assert error.retry_after_s
    assert (bench.counts["resubmitted"], bench.counts["failed"]) == (0, 1)


async def test_an_encoder_with_other_weights_is_no_fault_of_the_request() -> None:
    async with media_bench() as bench:
        bench.encoder.item_errors = [InvalidRequestError("the key is not that of the bytes", field="key")]
        assert joined(await bench.chat(PICTURE, "What is this?"))
        assert bench.counts["same_encoder"] == 1
