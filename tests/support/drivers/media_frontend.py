"""A frontend of a small LLaVA, with a fake engine that fetches embeddings and a fake encoder, all over real gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from grpc.aio import AioRpcError
from triptych.errors import (
    TriptychError,
)
from triptych.status import from_rpc_error
from triptych.v1 import common_pb2, generation_pb2
from triptych_common.media.key import media_key
from triptych_common.model.store import model_info

import support.builders.media_files as media
from support.builders.frontend import Bench, chat_request, frontend_bench
from support.fakes.encoder import SCOPE, FakeEncoder
from support.fakes.engine import Script, says
from support.fakes.media_engine import FakeMediaEngine
from support.grpc_server import serving
from support.waiting import until

IMAGE, AUDIO, VIDEO = common_pb2.MODALITY_IMAGE, common_pb2.MODALITY_AUDIO, common_pb2.MODALITY_VIDEO
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
        return self.bench.chat(request(*parts, **options))

    async def error(self, *parts: str | bytes | Item) -> TriptychError:
        with pytest.raises(AioRpcError) as caught:
            await self.chat(*parts)
        return from_rpc_error(caught.value)

    async def until_nothing_is_left(self) -> None:
        await until(lambda: not self.bench.frontend.num_live_requests and not self.engine.live)
        await self.bench.frontend._encoder_client.close()


def complete_request(prompt: str | list[int], *media: bytes | Item, **fields: Any) -> generation_pb2.CompleteRequest:
    """A completion of a text or of token ids, with pictures or other items. The tokenizer adds no special tokens to a text."""
    given = {"text": prompt} if isinstance(prompt, str) else {"token_ids": generation_pb2.TokenIds(ids=prompt)}
    items = [item if isinstance(item, Item) else Item(modality=IMAGE, data=item) for item in media]
    return generation_pb2.CompleteRequest(**({"add_special_tokens": False} | given | {"media": items} | fields))


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
async def family_bench(family: str = "llava_siglip", **settings: Any) -> AsyncIterator[tuple[Bench, FakeEncoder]]:
    """A frontend of a tiny model of a family, for prompts that nobody generates from."""
    path = media.checkpoint(family)
    encoder = FakeEncoder(model_info(path, path.name))
    async with (
        serving(encoder.register) as address,
        frontend_bench(model=path, **({"encoder_addresses": (address,)} | settings)) as bench,
    ):
        yield bench, encoder


@asynccontextmanager
async def media_bench(script: Script | None = None, **settings: Any) -> AsyncIterator[MediaBench]:
    path = media.checkpoint("llava_siglip")
    encoder = FakeEncoder(model_info(path, path.name), lambda item: 16)
    async with (
        serving(encoder.register) as address,
        frontend_bench(
            script or says([20, 21, 22]), model=path, engine_class=FakeMediaEngine, encoder_addresses=(address,), **settings
        ) as bench,
    ):
        yield MediaBench(bench, encoder)
