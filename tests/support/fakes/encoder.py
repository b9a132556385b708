"""An encoder without a model: a real servicer over real gRPC that keeps keys, counts calls and fails on demand."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import grpc
from grpc_health.v1 import health_pb2_grpc
from triptych.errors import Code, EmbeddingUnavailableError, TriptychError
from triptych.v1 import common_pb2, encoder_pb2, encoder_pb2_grpc
from triptych_common.cluster.encoder import EncoderConnection
from triptych_common.cluster.pool import Pool
from triptych_common.cluster.resolver import StaticResolver
from triptych_common.media.key import canonical_options, media_key
from triptych_common.rpc.control import Health
from triptych_common.rpc.status import to_request_error
from triptych_common.rpc.structs import from_struct

SCOPE = b"scope of the fake encoder"


class FakeEncoder(encoder_pb2_grpc.EncoderServiceServicer):
    """Encodes every item into `num_tokens(item)` tokens, and records the requests.

    Args:
        model: the model that it reports.
        num_tokens: returns an item's number of embeddings.
    """

    def __init__(
        self,
        model: common_pb2.ModelInfo,
        num_tokens: Callable[[encoder_pb2.EncodeItem], int] = lambda item: 1,
        scope: bytes = SCOPE,
    ) -> None:
        self._model = model
        self._num_tokens = num_tokens
        self._scope = scope
        self.instance = common_pb2.Instance(id=f"encoder {id(self)}", state=common_pb2.SERVER_STATE_SERVING)
        self.health = Health(())
        #: key -> number of tokens
        self.held: dict[bytes, int] = {}
        self.requests: list[encoder_pb2.EncodeItem] = []
        self.released: list[str] = []
        #: Raised by the next calls, one each.
        self.call_errors: list[TriptychError] = []
        #: Reported for the next items that come with a file, one each.
        self.item_errors: list[TriptychError] = []
        #: If set, items with a file wait for this event.
        self.gate: asyncio.Event | None = None
        #: If set, calls get no answer until this event is set.
        self.answers: asyncio.Event | None = None
        #: If set, embeddings can be fetched before the reply about them, which waits for this event.
        self.replies: asyncio.Event | None = None
        self.is_draining = False
        self.stats = encoder_pb2.GetStatsResponse()
        self.counts: Counter[str] = Counter()
        #: key -> messages that a fetch of the key returns instead of the default ones.
        self.fetches: dict[bytes, list[encoder_pb2.FetchResponse]] = {}
        #: If set, fetches wait for this event.
        self.fetch_gate: asyncio.Event | None = None
        #: Number of next fetches whose items are lost before they are sent.
        self.num_lost_before_fetch = 0
        #: key -> event that is set when its file was received and encoded, or refused
        self._coming: dict[bytes, asyncio.Event] = {}

    def register(self, server: grpc.aio.Server) -> None:
        """Add the services to a server."""
        encoder_pb2_grpc.add_EncoderServiceServicer_to_server(self, server)
        health_pb2_grpc.add_HealthServicer_to_server(self.health.servicer, server)

    async def Describe(
        self, request: encoder_pb2.DescribeRequest, context: grpc.aio.ServicerContext
    ) -> encoder_pb2.DescribeResponse:
        await self._until_it_answers()
        await self.health.set_ready(not self.is_draining)
        return encoder_pb2.DescribeResponse(model=self._model, embedding_fingerprint=self._scope, instance=self.instance)

    async def _until_it_answers(self) -> None:
        if self.answers is not None:
            self.counts["unanswered"] += 1
            await self.answers.wait()

    async def Encode(self, request: encoder_pb2.EncodeRequest, context: grpc.aio.ServicerContext) -> encoder_pb2.EncodeResponse:
        await self._until_it_answers()
        if self.call_errors:
            raise self.call_errors.pop(0)
        return encoder_pb2.EncodeResponse(results=[await self._encode(item) for item in request.items])

    async def _encode(self, item: encoder_pb2.EncodeItem) -> encoder_pb2.EncodeResult:
        self.requests.append(item)
        self.counts["bytes" if item.data else "key"] += 1
        tier = encoder_pb2.CACHE_TIER_LOCAL
        if item.data:
            try:
                if self.gate is not None:
                    await self.gate.wait()
                if self.item_errors:
                    return encoder_pb2.EncodeResult(key=item.key, error=to_request_error(self.item_errors.pop(0)))
                options, salt = canonical_options(from_struct(item.processor_options)), item.tenant_salt
                assert item.key == media_key(self._scope, item.modality, item.data, options, salt)
                self.held[item.key] = self._num_tokens(item)
                tier = encoder_pb2.CACHE_TIER_MISS
            finally:
                self._coming.pop(item.key, asyncio.Event()).set()
        if item.key not in self.held:
            self._coming.setdefault(item.key, asyncio.Event())
            error = common_pb2.RequestError(code=Code.NOT_FOUND, message="send the bytes")
            return encoder_pb2.EncodeResult(key=item.key, error=error)
        lease_id = f"lease {len(self.requests)}"
        if item.data and self.replies is not None:
            await self.replies.wait()
        return encoder_pb2.EncodeResult(key=item.key, lease_id=lease_id, num_tokens=self.held[item.key], tier=tier)

    async def Fetch(
        self, request: encoder_pb2.FetchRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[encoder_pb2.FetchResponse]:
        self.counts["fetch"] += 1
        try:
            if self.fetch_gate is not None:
                await self.fetch_gate.wait()
        except asyncio.CancelledError:
            self.counts["cancelled"] += 1
            raise
        for key in request.keys:
            if key in self._coming:
                await self._coming[key].wait()
            if self.num_lost_before_fetch:
                self.num_lost_before_fetch -= 1
                self.held.pop(key, None)
            for message in self.fetches.get(key, [self._fetched(key)]):
                yield message

    def _fetched(self, key: bytes) -> encoder_pb2.FetchResponse:
        if key in self.held:
            return encoder_pb2.FetchResponse(key=key, tensor_name="embeds", last_chunk_of_tensor=True, last_chunk_of_item=True)
        error = to_request_error(EmbeddingUnavailableError("it is gone"))
        return encoder_pb2.FetchResponse(key=key, last_chunk_of_item=True, error=error)

    async def GetStats(
        self, request: encoder_pb2.GetStatsRequest, context: grpc.aio.ServicerContext
    ) -> encoder_pb2.GetStatsResponse:
        await self._until_it_answers()
        return self.stats

    async def Release(self, request: encoder_pb2.ReleaseRequest, context: grpc.aio.ServicerContext) -> encoder_pb2.ReleaseResponse:
        self.released += request.lease_ids
        return encoder_pb2.ReleaseResponse(num_released=len(request.lease_ids))


@asynccontextmanager
async def encoder_pool(address: str, model: common_pb2.ModelInfo) -> AsyncIterator[Pool[EncoderConnection]]:
    """A connected pool with the encoder at this address."""
    pool = Pool("encoder", StaticResolver([address]), lambda one: EncoderConnection(one, model))
    task = asyncio.create_task(pool.run())
    try:
        await pool.until_ready()
        yield pool
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
