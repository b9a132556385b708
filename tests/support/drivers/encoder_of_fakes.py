"""EncoderService over real gRPC, with a fake preprocessor and fake towers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from triptych.errors import InvalidRequestError
from triptych.v1 import common_pb2, encoder_pb2, encoder_pb2_grpc
from triptych_common.rpc.channels import open_channel
from triptych_common.telemetry.tracing import OFF, Tracer
from triptych_encoder.cache.embedding_cache import EmbeddingCache
from triptych_encoder.cache.evictions import EvictionFeed
from triptych_encoder.cache.item import EncodedItem, PreprocessedItem
from triptych_encoder.encoding_queue import QueueLimits
from triptych_encoder.media.preprocess import PreprocessResult
from triptych_encoder.pipeline import EncodingPipeline, Store
from triptych_encoder.rpc.servicer import EncoderServicer
from triptych_encoder.tower.device_loop import DeviceLoop

from support.drivers.encoder import RunningEncoder
from support.grpc_server import serving

HIDDEN = 8


#: Bytes of an item's embeddings per byte of its file.
BYTES_PER_TOKEN = HIDDEN * 4


class FakePreprocessor:
    """An item of n bytes takes n tokens."""

    def prepare(self, modality: common_pb2.Modality, data: bytes, options: Mapping[str, Any]) -> PreprocessResult:
        if data.startswith(b"bad"):
            raise InvalidRequestError("the image is bad", field="data")
        values = torch.tensor(list(data), dtype=torch.float32)[:, None].expand(-1, HIDDEN).contiguous()
        return PreprocessResult(PreprocessedItem(modality, {"pixel_values": values}, len(data), {}), 0.01, 0.02)


@dataclass
class FakeTower:
    """Embeddings equal the inputs. If `gate` is set, each batch waits for a permit."""

    gate: threading.Semaphore | None = None
    batches: list[int] = field(default_factory=list)
    #: The items' files, in the order in which they were encoded.
    encoded: list[bytes] = field(default_factory=list)
    num_waiting: int = 0

    def signature(self, item: PreprocessedItem) -> tuple[object, ...]:
        return (item.modality,)

    def encode(self, items: Sequence[PreprocessedItem]) -> list[dict[str, torch.Tensor]]:
        if self.gate is not None:
            self.num_waiting += 1
            self.gate.acquire()
            self.num_waiting -= 1
        self.batches.append(len(items))
        self.encoded += [bytes(item.inputs["pixel_values"][:, 0].to(torch.uint8).tolist()) for item in items]
        if any(item.inputs["pixel_values"][0, 0] == ord("!") for item in items):
            raise RuntimeError("the tower stumbled")
        if any(item.inputs["pixel_values"][0, 0] == 0 for item in items):
            return [{"embeds": item.inputs["pixel_values"] / 0} for item in items]
        return [{"embeds": item.inputs["pixel_values"]} for item in items]


@dataclass
class Served:
    """A running encoder of fakes."""

    client: RunningEncoder
    tower: FakeTower
    pipeline: EncodingPipeline
    servicer: EncoderServicer
    device_loop: DeviceLoop

    def item(self, data: bytes, **options: Any) -> encoder_pb2.EncodeItem:
        return self.client.item("image", data, **options)

    async def stats(self) -> encoder_pb2.GetStatsResponse:
        stats = await self.client.stub.GetStats(encoder_pb2.GetStatsRequest())
        self.pipeline.cache.check_integrity()
        return stats


@asynccontextmanager
async def encoder_of_fakes(
    *,
    gated: bool = False,
    capacity_bytes: int = 1 << 20,
    max_queue: int = 64,
    store: Store | None = None,
    max_queue_bytes: int = 1 << 20,
    num_threads: int = 2,
    tracer: Tracer = OFF,
) -> AsyncIterator[Served]:
    """Run it.

    Args:
        num_threads: that prepare items; with one, items are encoded in the order in which the queue lets them in.
    """
    tower = FakeTower(threading.Semaphore(0) if gated else None)
    loop, feed, pool = DeviceLoop(max_batch_embeddings=1000), EvictionFeed(), ThreadPoolExecutor(num_threads)
    loop.start()
    loop.attach(tower)
    cache = EmbeddingCache[EncodedItem](capacity_bytes, feed.publish)
    pipeline = EncodingPipeline(cache, FakePreprocessor(), loop, pool, store, QueueLimits(max_queue, max_queue_bytes, 8))
    servicer = EncoderServicer(feed, max_items_per_request=32, instance=lambda: common_pb2.Instance(id="fake"), tracer=tracer)
    description = encoder_pb2.DescribeResponse(
        model=common_pb2.ModelInfo(name="fake"), embedding_fingerprint=b"scope", modalities=[common_pb2.MODALITY_IMAGE]
    )
    servicer.attach(pipeline, description)
    try:
        async with (
            serving(lambda server: encoder_pb2_grpc.add_EncoderServiceServicer_to_server(servicer, server)) as address,
            open_channel(address) as channel,
        ):
            client = RunningEncoder(encoder_pb2_grpc.EncoderServiceStub(channel), description, None)  # type: ignore[arg-type]
            yield Served(client, tower, pipeline, servicer, loop)
    finally:
        if tower.gate is not None:
            tower.gate.release(10_000)
        await pipeline.close()
        await asyncio.to_thread(loop.stop)
        pool.shutdown()


class BrokenStore:
    """A second cache tier that is unavailable."""

    num_failures = 0

    async def get(self, key: bytes) -> EncodedItem | None:
        self.num_failures += 1
        return None

    async def put(self, key: bytes, item: EncodedItem) -> None:
        self.num_failures += 1

    async def has(self, keys: Sequence[bytes]) -> list[bool]:
        return [False] * len(keys)

    async def evict(self, keys: Sequence[bytes]) -> None: ...
    async def close(self) -> None: ...
