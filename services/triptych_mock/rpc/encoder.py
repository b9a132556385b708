"""EncoderService: embeddings that depend on the file's bytes alone."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from array import array
from collections.abc import AsyncIterator, Iterable

import grpc
from triptych.errors import EmbeddingUnavailableError, InvalidRequestError, MediaNotFoundError, TriptychError
from triptych.v1 import common_pb2, encoder_pb2, encoder_pb2_grpc
from triptych_common.rpc.identity import Identity
from triptych_common.rpc.status import to_request_error

from triptych_mock.media import NUM_TOKENS
from triptych_mock.pooling import DIMENSIONS, vector
from triptych_mock.script import find_script, play_fault

Context = grpc.aio.ServicerContext
_MAX_ENTRIES = 10_000


class EncoderServicer(encoder_pb2_grpc.EncoderServiceServicer):
    """Keeps the keys that it has seen. An item whose bytes are a script with a fault fails."""

    def __init__(self, model: common_pb2.ModelInfo, identity: Identity) -> None:
        self._model = model
        self._identity = identity
        self._held: dict[bytes, None] = {}
        self._leases: dict[str, bytes] = {}
        self._stats = encoder_pb2.GetStatsResponse(capacity_bytes=_MAX_ENTRIES * NUM_TOKENS * DIMENSIONS * 4)
        self._watchers: set[asyncio.Queue[list[bytes]]] = set()

    async def Describe(self, request: encoder_pb2.DescribeRequest, context: Context) -> encoder_pb2.DescribeResponse:
        return encoder_pb2.DescribeResponse(
            model=self._model,
            embedding_fingerprint=hashlib.sha256(b"mock").digest(),
            modalities=[common_pb2.MODALITY_IMAGE, common_pb2.MODALITY_AUDIO, common_pb2.MODALITY_VIDEO],
            instance=self._identity.describe(common_pb2.SERVER_STATE_SERVING),
        )

    async def Encode(self, request: encoder_pb2.EncodeRequest, context: Context) -> encoder_pb2.EncodeResponse:
        return encoder_pb2.EncodeResponse(results=[await self._encode(item) for item in request.items])

    async def _encode(self, item: encoder_pb2.EncodeItem) -> encoder_pb2.EncodeResult:
        key = item.key or hashlib.sha256(item.data).digest()
        try:
            script = find_script(item.data.decode(errors="ignore")) if item.data else None
            if script is not None:
                await play_fault(script.fault, 0)
            if key not in self._held and not item.data:
                raise MediaNotFoundError("the mock has not seen this key; send the bytes", field="data")
        except TriptychError as error:
            self._stats.num_failed += 1
            return encoder_pb2.EncodeResult(key=key, error=to_request_error(error))
        is_hit = key in self._held
        self._stats.num_local_hits += is_hit
        self._stats.num_misses += not is_hit
        self._hold(key)
        lease_id = secrets.token_hex(8)
        self._leases[lease_id] = key
        while len(self._leases) > _MAX_ENTRIES:
            del self._leases[next(iter(self._leases))]
        tier = encoder_pb2.CACHE_TIER_LOCAL if is_hit else encoder_pb2.CACHE_TIER_MISS
        return encoder_pb2.EncodeResult(key=key, lease_id=lease_id, num_tokens=NUM_TOKENS, tier=tier)

    def _hold(self, key: bytes) -> None:
        self._held[key] = None
        if len(self._held) > _MAX_ENTRIES:
            self._evict([next(iter(self._held))])

    async def Fetch(self, request: encoder_pb2.FetchRequest, context: Context) -> AsyncIterator[encoder_pb2.FetchResponse]:
        for key in request.keys:
            if key not in self._held:
                error = to_request_error(EmbeddingUnavailableError("the mock does not hold this key", field="keys"))
                yield encoder_pb2.FetchResponse(key=key, error=error)
                continue
            values = array("f", vector(key.hex()) * NUM_TOKENS)
            header = common_pb2.Tensor(dtype=common_pb2.DATA_TYPE_FLOAT32, shape=[NUM_TOKENS, DIMENSIONS])
            yield encoder_pb2.FetchResponse(
                key=key,
                tensor_name="embeds",
                header=header,
                data=values.tobytes(),
                last_chunk_of_tensor=True,
                last_chunk_of_item=True,
            )

    async def Lookup(self, request: encoder_pb2.LookupRequest, context: Context) -> encoder_pb2.LookupResponse:
        tiers = [encoder_pb2.CACHE_TIER_LOCAL if key in self._held else encoder_pb2.CACHE_TIER_MISS for key in request.keys]
        return encoder_pb2.LookupResponse(tiers=tiers)

    async def Renew(self, request: encoder_pb2.RenewRequest, context: Context) -> encoder_pb2.RenewResponse:
        return encoder_pb2.RenewResponse(lease_ids=[lease_id for lease_id in request.lease_ids if lease_id in self._leases])

    async def Release(self, request: encoder_pb2.ReleaseRequest, context: Context) -> encoder_pb2.ReleaseResponse:
        released = [self._leases.pop(lease_id, None) for lease_id in request.lease_ids]
        return encoder_pb2.ReleaseResponse(num_released=len(released) - released.count(None))

    async def Evict(self, request: encoder_pb2.EvictRequest, context: Context) -> encoder_pb2.EvictResponse:
        if not request.keys:
            raise InvalidRequestError("keys must not be empty", field="keys", limit=1, value=0)
        return encoder_pb2.EvictResponse(num_evicted=self._evict(request.keys))

    def _evict(self, keys: Iterable[bytes]) -> int:
        gone = [key for key in keys if key in self._held]
        for key in gone:
            del self._held[key]
        self._stats.num_evictions += len(gone)
        for watcher in self._watchers if gone else ():
            watcher.put_nowait(gone)
        return len(gone)

    async def GetStats(self, request: encoder_pb2.GetStatsRequest, context: Context) -> encoder_pb2.GetStatsResponse:
        stats = encoder_pb2.GetStatsResponse()
        stats.CopyFrom(self._stats)
        stats.num_entries, stats.num_leases = len(self._held), len(self._leases)
        stats.used_bytes = len(self._held) * NUM_TOKENS * DIMENSIONS * 4
        return stats

    async def WatchEvictions(
        self, request: encoder_pb2.WatchEvictionsRequest, context: Context
    ) -> AsyncIterator[encoder_pb2.WatchEvictionsResponse]:
        queue: asyncio.Queue[list[bytes]] = asyncio.Queue()
        self._watchers.add(queue)
        try:
            # The caller knows by the headers that from now on it misses nothing.
            await context.send_initial_metadata(())
            while True:
                yield encoder_pb2.WatchEvictionsResponse(keys=await queue.get())
        finally:
            self._watchers.discard(queue)
