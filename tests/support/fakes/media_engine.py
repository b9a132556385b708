"""A fake engine for media: it fetches the embeddings from the encoders before it plays its script."""

from __future__ import annotations

import asyncio
from collections import Counter

import grpc
from triptych.errors import EmbeddingUnavailableError
from triptych.v1 import common_pb2, encoder_pb2, encoder_pb2_grpc, engine_pb2
from triptych_common.rpc.channels import open_channel
from triptych_common.rpc.status import to_request_error

from support.fakes.engine import FakeEngine, FakeSequence, Script


class FakeMediaEngine(FakeEngine):
    """Fetches over real gRPC, keeps a prefix cache of whole items, and reports missing embeddings as an engine does."""

    def __init__(self, model: common_pb2.ModelInfo, script: Script) -> None:
        super().__init__(model, script)
        #: Keys whose tokens are in the prefix cache. Nothing is fetched for them.
        self.prefix_cached: set[bytes] = set()
        self.counts: Counter[str] = Counter()
        #: Addresses of the known encoders.
        self.encoder_addresses: tuple[str, ...] = ()
        self._fetching: set[asyncio.Task[None]] = set()

    def _begin(self, request: engine_pb2.EngineRequest, index: int) -> FakeSequence:
        if not request.media:
            return super()._begin(request, index)
        sequence = FakeSequence(request, [], index)
        task = asyncio.create_task(self._fetch_all(sequence))
        self._fetching.add(task)
        task.add_done_callback(self._fetching.discard)
        return sequence

    async def _fetch_all(self, sequence: FakeSequence) -> None:
        request = sequence.request
        fetches: list[engine_pb2.MediaFetch] = []
        outputs = list(self.script(request))
        for index, ref in enumerate(request.media):
            if ref.key in self.prefix_cached:
                fetches.append(engine_pb2.MediaFetch(source=common_pb2.EMBEDDING_SOURCE_PREFIX_CACHE))
            elif await self._fetch(ref):
                fetches.append(engine_pb2.MediaFetch(source=common_pb2.EMBEDDING_SOURCE_ENCODER, fetch_s=0.5))
            else:
                self.counts["lost"] += 1
                error = to_request_error(EmbeddingUnavailableError("the encoder does not hold it", field=f"media[{index}]"))
                outputs = [engine_pb2.SequenceOutput(finish_reason=common_pb2.FINISH_REASON_ERROR, error=error)]
                break
        else:
            ranges = request.placeholders
            cached = [found.length for found in ranges if request.media[found.media_index].key in self.prefix_cached]
            outputs[-1].usage.cached_media_tokens = sum(cached)
            outputs[-1].media.extend(fetches)
            self.prefix_cached.update(ref.key for ref in request.media)
        async with self._changed:
            sequence.outputs = outputs
            self._changed.notify_all()

    async def Embed(
        self, request: engine_pb2.EngineServiceEmbedRequest, context: grpc.aio.ServicerContext
    ) -> engine_pb2.EngineServiceEmbedResponse:
        for number, one in enumerate(request.requests):
            for index, ref in enumerate(one.media):
                if not await self._fetch(ref):
                    self.counts["lost"] += 1
                    field = f"requests[{number}].media[{index}]"
                    raise EmbeddingUnavailableError(f"requests[{number}]: the encoder does not hold it", field=field)
        return await super().Embed(request, context)

    async def _fetch(self, ref: common_pb2.MediaRef) -> bool:
        self.counts["fetch"] += 1
        return any([await self._fetch_from(address, ref) for address in self.encoder_addresses])

    async def _fetch_from(self, address: str, ref: common_pb2.MediaRef) -> bool:
        async with open_channel(address) as channel:
            stub = encoder_pb2_grpc.EncoderServiceStub(channel)
            try:
                description = await stub.Describe(encoder_pb2.DescribeRequest(), timeout=20)
                if description.instance.id != ref.encoder_instance_id:
                    return False
                async for chunk in stub.Fetch(encoder_pb2.FetchRequest(keys=[ref.key]), timeout=20):
                    if chunk.HasField("error"):
                        return False
            except grpc.aio.AioRpcError:
                return False
        return True
