"""An engine service with media: real scheduler, step loop and fetcher, an encoder and a runner that have no model."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import grpc
import pytest
from triptych.errors import TriptychError
from triptych.status import from_rpc_error
from triptych.v1 import common_pb2, encoder_pb2, engine_pb2, engine_pb2_grpc
from triptych_common.rpc.channels import open_channel
from triptych_engine.core import EngineCore
from triptych_engine.media.fetcher import EmbeddingFetcher, FetchStatistics
from triptych_engine.metrics import EngineMetrics
from triptych_engine.rpc.outbox import Outbox
from triptych_engine.rpc.servicer import EngineServicer

from support.builders.engine import a_media_message, a_scheduler, traits
from support.fakes.encoder import FakeEncoder, encoder_pool
from support.fakes.runner import VOCAB_SIZE, FakeRunner, embedding
from support.grpc_server import serving

MODEL = common_pb2.ModelInfo(name="fake", max_model_len=256, vocab_size=VOCAB_SIZE)
FLOAT32, INT64 = common_pb2.DATA_TYPE_FLOAT32, common_pb2.DATA_TYPE_INT64


@dataclass
class Served:
    """A running engine, its stub, and an encoder."""

    stub: engine_pb2_grpc.EngineServiceStub
    encoder: FakeEncoder
    #: The encoder's instance id.
    encoder_id: str
    core: EngineCore
    fetcher: EmbeddingFetcher
    runner: FakeRunner
    metrics: EngineMetrics

    def message(self, request_id: str, parts: list, address: str | None = None) -> engine_pb2.EngineRequest:
        message = a_media_message(request_id, parts, self.encoder_id if address is None else address)
        message.sampling.CopyFrom(common_pb2.SamplingParams(max_tokens=8, temperature=0))
        return message

    async def generate(self, message: engine_pb2.EngineRequest) -> tuple[list[int], engine_pb2.SequenceOutput]:
        token_ids, last = [], engine_pb2.SequenceOutput()
        async with asyncio.timeout(20):
            async for response in self.stub.Generate(engine_pb2.GenerateRequest(request=message)):
                token_ids += response.output.token_ids
                last = response.output
        return token_ids, last

    async def failure(self, message: engine_pb2.EngineRequest) -> TriptychError:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.generate(message)
        return from_rpc_error(caught.value)


@asynccontextmanager
async def a_media_engine(timeout_s: float = 10.0) -> AsyncIterator[Served]:
    encoder = FakeEncoder(MODEL)
    outbox = Outbox(asyncio.get_running_loop(), lambda load: servicer.on_load(load))
    servicer = EngineServicer(outbox, common_pb2.Instance)
    scheduler = a_scheduler()
    async with AsyncExitStack() as stack:
        encoder_address = await stack.enter_async_context(serving(encoder.register))
        encoders = await stack.enter_async_context(encoder_pool(encoder_address, MODEL))
        runner, fetches = FakeRunner(), FetchStatistics()
        fetcher = EmbeddingFetcher(encoders, traits(), timeout_s, lambda number, result: core.deliver(number, result), fetches)
        core = EngineCore(scheduler, runner, outbox.publish, fetcher=fetcher)
        metrics = EngineMetrics(core, scheduler, outbox.statistics, fetches, MODEL.name, embedding_bytes=4)
        core.start()
        stack.push_async_callback(asyncio.to_thread, core.stop)
        servicer.attach(core, MODEL, scheduler.kv_cache.capacity_tokens, traits())
        async with (
            serving(lambda server: engine_pb2_grpc.add_EngineServiceServicer_to_server(servicer, server)) as address,
            open_channel(address) as channel,
        ):
            stub = engine_pb2_grpc.EngineServiceStub(channel)
            yield Served(stub, encoder, encoder.instance.id, core, fetcher, runner, metrics)
            scheduler.check_integrity()
            assert not scheduler.live_request_ids
            assert not scheduler.embeddings.owner_ids()
            await fetcher.close()


def chunks(name: bytes, num_tokens: int = 6, shape: tuple[int, ...] = (6, 1)) -> list[encoder_pb2.FetchResponse]:
    """An item in two chunks, then its layout."""
    key = name.ljust(32, b".")
    data = array("I", (embedding(key, row) for row in range(num_tokens))).tobytes()
    header, grid = common_pb2.Tensor(dtype=FLOAT32, shape=shape), common_pb2.Tensor(dtype=INT64, shape=[1])
    return [
        encoder_pb2.FetchResponse(key=key, tensor_name="embeds", header=header, data=data[:10]),
        encoder_pb2.FetchResponse(key=key, tensor_name="embeds", data=data[10:], last_chunk_of_tensor=True),
        encoder_pb2.FetchResponse(key=key, tensor_name="grid", header=grid, data=b"." * 8, last_chunk_of_item=True),
    ]


def holding(encoder: FakeEncoder, *names: bytes) -> None:
    """Make the encoder hold items of six tokens under these names."""
    encoder.fetches |= {name.ljust(32, b"."): chunks(name) for name in names}
