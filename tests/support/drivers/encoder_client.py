"""Fake encoders over real gRPC, and the frontend's client of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from triptych.v1 import common_pb2
from triptych_common.media.key import media_key
from triptych_frontend.encoders.client import EncoderClient
from triptych_frontend.encoders.encoding import MediaEncoding
from triptych_frontend.encoders.pool import EncoderPool
from triptych_frontend.media.item import Expansion, MediaFile, PreparedMedia

from support.fakes.encoder import SCOPE, FakeEncoder
from support.grpc_server import serving
from support.waiting import until

MODEL = common_pb2.ModelInfo(name="model", fingerprint="0" * 64)


IMAGE = common_pb2.MODALITY_IMAGE


class Encoders:
    """Fake encoders and a client of them."""

    def __init__(self, fakes: list[FakeEncoder], addresses: list[str], pool: EncoderPool, client: EncoderClient) -> None:
        self.fakes, self.addresses, self.pool, self.client = fakes, addresses, pool, client

    def home(self, item: PreparedMedia) -> tuple[FakeEncoder, FakeEncoder]:
        """The encoder that an item belongs to, and the other one."""
        index = self.addresses.index(self.pool.ranked(item.key)[0].address)
        return self.fakes[index], self.fakes[1 - index]


@asynccontextmanager
async def encoders(count: int = 2, num_tokens: int = 4, **options: float) -> AsyncIterator[Encoders]:
    fakes = [FakeEncoder(MODEL, lambda _: num_tokens) for _ in range(count)]
    async with AsyncExitStack() as stack:
        addresses = [await stack.enter_async_context(serving(fake.register)) for fake in fakes]
        pool = EncoderPool(addresses, MODEL)
        client = EncoderClient(pool, options.get("encode_timeout_s", 5.0))
        watch = asyncio.create_task(pool.run())
        try:
            await until_connected(pool, count)
            yield Encoders(fakes, addresses, pool, client)
        finally:
            await client.close()
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)


def item(content: bytes | None = b"content", key: bytes = b"", num_embeds: int = 4) -> PreparedMedia:
    key = key or media_key(SCOPE, IMAGE, content or b"content")
    return PreparedMedia(IMAGE, key, MediaFile(content), {}, Expansion("", num_embeds), "messages[0].content[0].media")


async def until_connected(pool: EncoderPool, count: int) -> None:
    await until(lambda: len(pool.ready) == count, timeout_s=15)


async def ensure(client: EncoderClient, media: Sequence[PreparedMedia]) -> MediaEncoding:
    """Encode the items of a call, and wait for them. Cleans up before it raises an error."""
    encoding = MediaEncoding(client, media)
    try:
        await encoding.wait()
    except BaseException:
        await encoding.close()
        raise
    return encoding
