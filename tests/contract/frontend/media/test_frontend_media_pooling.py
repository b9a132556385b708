"""Embed with media of the frontend, in front of a fake engine and a fake encoder."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import support.builders.media_files as media
from grpc.aio import AioRpcError
from support.builders.frontend import Bench, frontend_bench
from support.drivers.media_frontend import PICTURE, request
from support.fakes.encoder import FakeEncoder
from support.fakes.media_engine import FakeMediaEngine
from support.grpc_server import serving
from support.waiting import until
from triptych.errors import (
    ContextLengthError,
    InvalidRequestError,
    QueueFullError,
    ServiceUnavailableError,
    TriptychError,
)
from triptych.status import from_rpc_error
from triptych.v1 import common_pb2, generation_pb2
from triptych_common.model.pooling import served_model
from triptych_common.model.store import model_info

_ITEM = "inputs[1].messages.messages[0].content[0].media"


def _embed(*conversations: tuple[str | bytes | common_pb2.MediaItem, ...], **fields: Any) -> generation_pb2.EmbedRequest:
    """Each conversation has one message of these parts. A text stands before them."""
    inputs = [generation_pb2.EmbedInput(text="Hi")]
    for parts in conversations:
        inputs.append(generation_pb2.EmbedInput(messages=generation_pb2.ChatMessages(messages=request(*parts).messages)))
    return generation_pb2.EmbedRequest(inputs=inputs, **fields)


@asynccontextmanager
async def _bench(**settings: Any) -> AsyncIterator[tuple[Bench, FakeEncoder]]:
    path = media.checkpoint("llava_siglip")
    # An encoder knows nothing of pooling.
    encoder = FakeEncoder(model_info(path, path.name), lambda item: 16)
    info, _ = served_model(path, path.name, None, "embed")
    async with (
        serving(encoder.register) as address,
        frontend_bench(
            model=path, engine_model=info, engine_class=FakeMediaEngine, encoder_addresses=(address,), task="embed", **settings
        ) as bench,
    ):
        yield bench, encoder
        await until(lambda: not bench.frontend.num_live_requests)
        await bench.frontend._encoder_client.close()
        assert not bench.frontend._media.budget.used_bytes


async def _error(bench: Bench, message: generation_pb2.EmbedRequest) -> TriptychError:
    with pytest.raises(AioRpcError) as caught:
        await bench.generation.Embed(message)
    return from_rpc_error(caught.value)


async def test_pictures_go_to_the_engine_by_key_and_texts_beside_them() -> None:
    async with _bench() as (bench, encoder):
        answer = await bench.generation.Embed(_embed((PICTURE, "What is this?"), (PICTURE,)))
        num_sent = encoder.counts["bytes"]  # 2 if both asked before one was sent
        await bench.generation.Embed(_embed((PICTURE,)))
        assert encoder.counts["bytes"] == num_sent
        del bench.engine.embeds[3:]
    by_media = {len(one.requests[0].media): one for one in bench.engine.embeds}
    with_picture = by_media[1].requests[0]
    assert sum(one.length for one in with_picture.placeholders) == 16
    assert with_picture.media[0].encoder_instance_id == encoder.instance.id
    assert not by_media[0].requests[0].media
    lengths = sorted(len(one.requests[0].prompt_token_ids) for one in bench.engine.embeds)
    assert sorted(one.values[1] for one in answer.embeddings) == lengths
    assert answer.usage.prompt_tokens == sum(lengths)


async def test_tenants_and_salts_share_neither_files_nor_names_nor_embeddings() -> None:
    first, second = (common_pb2.CallContext(tenant=name) for name in ("first", "second"))
    named = common_pb2.MediaItem(modality=common_pb2.MODALITY_IMAGE, data=PICTURE, uuid="cat")
    name = common_pb2.MediaItem(modality=common_pb2.MODALITY_IMAGE, uuid="cat")
    async with _bench() as (bench, _):
        header = generation_pb2.UploadMediaHeader(num_bytes=len(PICTURE), context=first)
        parts = [generation_pb2.UploadMediaRequest(header=header), generation_pb2.UploadMediaRequest(data=PICTURE)]
        upload_id = (await bench.generation.UploadMedia(iter(parts))).upload_id
        uploaded = common_pb2.MediaItem(modality=common_pb2.MODALITY_IMAGE, upload_id=upload_id)
        for item in (named, uploaded):
            await bench.generation.Embed(_embed((item,), context=first))
        calls: list[tuple[common_pb2.MediaItem, dict[str, Any]]] = [
            (named, {"context": second}),
            (named, {"context": first, "cache_salt": "s"}),
            (name, {"context": first}),
        ]
        for item, fields in calls:
            await bench.generation.Embed(_embed((item,), **fields))
        for fields in ({}, {"context": common_pb2.CallContext(tenant="third")}, {"context": first, "cache_salt": "other"}):
            assert "is not known here" in (await _error(bench, _embed((name,), **fields))).message
        sent = [one.requests[0] for one in bench.engine.embeds]
    mine, uploads, foreign, salted, again = (one.media[0].key for one in sent if one.media)
    assert mine == uploads == again
    assert len({mine, foreign, salted}) == 3
    assert {one.context.tenant for one in sent} == {"first", "second"}


async def test_embeddings_lost_before_they_were_fetched_are_made_again() -> None:
    async with _bench() as (bench, encoder):
        encoder.num_lost_before_fetch = 1
        await bench.generation.Embed(_embed((PICTURE, "What is this?")))
        counts = bench.frontend._encoder_client.counts
        assert (encoder.counts["bytes"], counts["again"], counts["resubmitted"], counts["failed"]) == (2, 1, 1, 0)


async def test_embeddings_that_are_lost_each_time_end_the_call() -> None:
    async with _bench() as (bench, encoder):
        encoder.num_lost_before_fetch = 99
        error = await _error(bench, _embed((PICTURE, "What is this?")))
        counts = bench.frontend._encoder_client.counts
        assert (counts["resubmitted"], counts["failed"]) == (3, 1)
    assert isinstance(error, ServiceUnavailableError)
    assert (error.field, error.message) == (_ITEM, f"{_ITEM}: the encoder does not hold it")


async def test_an_encoder_that_cannot_ends_the_call_alone() -> None:
    async with _bench() as (bench, encoder):
        encoder.call_errors = [QueueFullError("full", retry_after_s=2)] * 9
        error = await _error(bench, _embed((PICTURE, "What is this?")))
        assert len((await bench.generation.Embed(_embed())).embeddings) == 1
    assert isinstance(error, QueueFullError)
    assert error.field == _ITEM


async def test_a_cancelled_call_leaves_nothing_behind() -> None:
    async with _bench() as (bench, encoder):
        bench.engine.embed_gate = asyncio.Semaphore(0)
        call = bench.generation.Embed(_embed((PICTURE, "What is this?")))
        await until(lambda: len(bench.engine.embeds) == 2)
        call.cancel()
        await until(lambda: not bench.frontend.num_live_requests)
        await until(lambda: len(encoder.released) == 1)


@pytest.mark.parametrize(
    ("message", "error", "field"),
    [
        (_embed((b"no picture", "Hi")), InvalidRequestError, _ITEM),
        (_embed((common_pb2.MediaItem(modality=common_pb2.MODALITY_AUDIO, data=b"x"),)), InvalidRequestError, _ITEM),
        (_embed((PICTURE, "What is this?"), truncate_to=10), ContextLengthError, "inputs[1]"),
    ],
    ids=["no picture", "audio", "too long"],
)
async def test_faults_name_their_place(message: generation_pb2.EmbedRequest, error: type[TriptychError], field: str) -> None:
    async with _bench() as (bench, _):
        found = await _error(bench, message)
        assert not bench.engine.embeds
    assert isinstance(found, error)
    assert found.field == field
    assert found.message.startswith(field) or f"{field} is" in found.message
