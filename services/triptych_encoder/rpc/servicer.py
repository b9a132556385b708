"""EncoderService: the gRPC interface of the pipeline."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence

import grpc
from triptych.errors import InvalidRequestError, MediaNotFoundError, ServiceUnavailableError, TriptychError
from triptych.v1 import common_pb2, encoder_pb2, encoder_pb2_grpc
from triptych_common.media.key import canonical_options, media_key
from triptych_common.rpc.principal import tenant_of_salt
from triptych_common.rpc.status import to_request_error
from triptych_common.telemetry.trace_context import TraceContext
from triptych_common.telemetry.tracing import OFF, Tracer

from triptych_encoder.cache.evictions import EvictionFeed
from triptych_encoder.cache.wire import chunks
from triptych_encoder.encoding_queue import ItemRequest
from triptych_encoder.media.options import parse_options
from triptych_encoder.pipeline import EncodingPipeline, LeasedItem
from triptych_encoder.rpc.item_trace import FetchTrace, ItemTrace

log = logging.getLogger(__name__)
_KEY_BYTES = 32
_LEASE_S, _MAX_LEASE_S = 30.0, 600.0
_FETCH_TIMEOUT_S, _MAX_FETCH_TIMEOUT_S = 30.0, 3600.0
_CHUNK_BYTES, _MIN_CHUNK_BYTES, _MAX_CHUNK_BYTES = 1 << 20, 64 << 10, 3 << 20
#: Larger files are hashed in a thread, so that the event loop stays responsive.
_HASH_INLINE_BYTES = 64 << 10


class EncoderServicer(encoder_pb2_grpc.EncoderServiceServicer):
    """Serves one pipeline. Until a pipeline is attached, calls are refused as unavailable.

    Args:
        instance: returns the identity of this encoder.
    """

    def __init__(
        self,
        evictions: EvictionFeed,
        max_items_per_request: int,
        instance: Callable[[], common_pb2.Instance],
        tracer: Tracer = OFF,
    ) -> None:
        self._instance = instance
        self._tracer = tracer
        self._evictions = evictions
        self._max_items = max_items_per_request
        self._pipeline: EncodingPipeline | None = None
        self._description = encoder_pb2.DescribeResponse()
        self._refusal: str | None = "the encoder is loading its model"  # why items are refused; None while they are accepted

    def attach(self, pipeline: EncodingPipeline, description: encoder_pb2.DescribeResponse) -> None:
        """Accept requests from now on."""
        self._pipeline, self._description, self._refusal = pipeline, description, None

    def refuse(self, reason: str) -> None:
        """Refuse to encode. Cached embeddings can still be fetched."""
        self._refusal = reason
        if self._pipeline is not None:
            self._pipeline.expect_no_bytes()

    def accept(self) -> None:
        """Encode again, after `refuse`."""
        self._refusal = None

    @property
    def _attached(self) -> EncodingPipeline:
        if self._pipeline is None:
            raise ServiceUnavailableError("the encoder is loading its model", retry_after_s=5.0)
        return self._pipeline

    async def Describe(
        self, request: encoder_pb2.DescribeRequest, context: grpc.aio.ServicerContext
    ) -> encoder_pb2.DescribeResponse:
        _ = self._attached
        description = encoder_pb2.DescribeResponse()
        description.CopyFrom(self._description)
        description.instance.CopyFrom(self._instance())
        return description

    async def Encode(self, request: encoder_pb2.EncodeRequest, context: grpc.aio.ServicerContext) -> encoder_pb2.EncodeResponse:
        if self._refusal is not None:
            raise ServiceUnavailableError(self._refusal, retry_after_s=5.0)
        lease_s = _within("lease_s", request.lease_s if request.HasField("lease_s") else _LEASE_S, 1.0, _MAX_LEASE_S)
        if len(request.items) > self._max_items:
            raise InvalidRequestError(
                f"at most {self._max_items} items are encoded per request; given: {len(request.items)}",
                field="items",
                limit=self._max_items,
                value=len(request.items),
            )
        # When the call is cancelled, the group cancels its items. An item that other calls wait for is still computed.
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._encode_item(item, lease_s)) for item in request.items]
        return encoder_pb2.EncodeResponse(results=[task.result() for task in tasks])

    async def _encode_item(self, item: encoder_pb2.EncodeItem, lease_s: float) -> encoder_pb2.EncodeResult:
        start_s = time.perf_counter()
        trace = ItemTrace(self._tracer, item.key, item.modality)
        try:
            leased = await self._attached.get_or_encode(await self._checked(item, trace.context), lease_s)
        except asyncio.CancelledError as error:
            trace.fail(error)
            raise
        except Exception as error:
            trace.fail(error)
            # A missing item is part of the protocol: the caller sends the file.
            if isinstance(error, MediaNotFoundError):
                return encoder_pb2.EncodeResult(key=item.key, error=to_request_error(error))
            if not isinstance(error, TriptychError):
                log.error("unexpected error on item %s", item.key.hex()[:12], exc_info=error)
            return encoder_pb2.EncodeResult(key=item.key, error=self._failed(error))
        trace.end(leased)
        _log_item(item, leased, time.perf_counter() - start_s)
        times = leased.times
        return encoder_pb2.EncodeResult(
            key=item.key,
            lease_id=leased.lease_id,
            num_tokens=leased.item.num_tokens,
            tier=leased.tier,
            timings=encoder_pb2.EncodeTimings(
                queue_s=times.queue_s, decode_s=times.decode_s, preprocess_s=times.preprocess_s, encode_s=times.encode_s
            ),
        )

    def _failed(self, error: Exception) -> common_pb2.RequestError:
        """Count the error of an item or a fetch, and convert it."""
        failure = to_request_error(error)
        self._attached.counters.errors[failure.reason] += 1
        return failure

    async def _checked(self, item: encoder_pb2.EncodeItem, trace: TraceContext | None) -> ItemRequest:
        _check_key(item.key)
        self._attached.counters.num_uploaded_bytes += len(item.data)
        if item.modality not in self._description.modalities:
            name = common_pb2.Modality.Name(item.modality).removeprefix("MODALITY_").lower()
            raise InvalidRequestError(f"{self._description.model.name} takes no {name}", field="modality", value=name)
        options = parse_options(item.processor_options)
        data = item.data  # each access is a copy
        if data:
            arguments = (self._description.embedding_fingerprint, item.modality, data, canonical_options(options), item.tenant_salt)
            is_large = len(data) > _HASH_INLINE_BYTES
            expected = await asyncio.to_thread(media_key, *arguments) if is_large else media_key(*arguments)
            if expected != item.key:
                raise InvalidRequestError(
                    f"the key is not that of the bytes, options and salt under this encoder's scope: expected {expected.hex()}",
                    field="key",
                    limit=expected.hex(),
                    value=item.key.hex(),
                )
        return ItemRequest(item.key, item.modality, data, options, trace, tenant_of_salt(item.tenant_salt))

    async def Fetch(
        self, request: encoder_pb2.FetchRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[encoder_pb2.FetchResponse]:
        pipeline = self._attached
        chunk_bytes = int(
            _within(
                "chunk_bytes",
                request.chunk_bytes if request.HasField("chunk_bytes") else _CHUNK_BYTES,
                _MIN_CHUNK_BYTES,
                _MAX_CHUNK_BYTES,
            )
        )
        timeout_s = _within(
            "timeout_s", request.timeout_s if request.HasField("timeout_s") else _FETCH_TIMEOUT_S, 0.0, _MAX_FETCH_TIMEOUT_S
        )
        deadline_s = time.monotonic() + timeout_s
        trace = FetchTrace(self._tracer)
        try:
            for key in request.keys:
                start_s = time.perf_counter()
                try:
                    _check_key(key)
                    item = await pipeline.wait_for(key, max(0.0, deadline_s - time.monotonic()))
                except Exception as error:
                    # Report the error for this item only. Unexpected errors are reported as internal; they were logged where they
                    # occurred.
                    trace.fail(error)
                    yield encoder_pb2.FetchResponse(key=key, last_chunk_of_item=True, error=self._failed(error))
                    continue
                trace.found()
                for chunk in chunks(key, item, chunk_bytes):
                    pipeline.counters.num_fetched_bytes += len(chunk.data)
                    trace.num_bytes += len(chunk.data)
                    yield chunk
                pipeline.counters.fetch.observe(time.perf_counter() - start_s)
        except BaseException as error:
            trace.fail(error)
            raise
        finally:
            trace.end()

    async def Lookup(self, request: encoder_pb2.LookupRequest, context: grpc.aio.ServicerContext) -> encoder_pb2.LookupResponse:
        return encoder_pb2.LookupResponse(tiers=await self._attached.lookup(request.keys))

    async def Release(self, request: encoder_pb2.ReleaseRequest, context: grpc.aio.ServicerContext) -> encoder_pb2.ReleaseResponse:
        cache = self._attached.cache
        return encoder_pb2.ReleaseResponse(num_released=sum(cache.release(lease_id) for lease_id in request.lease_ids))

    async def Renew(self, request: encoder_pb2.RenewRequest, context: grpc.aio.ServicerContext) -> encoder_pb2.RenewResponse:
        lease_s = _within("lease_s", request.lease_s if request.HasField("lease_s") else _LEASE_S, 1.0, _MAX_LEASE_S)
        cache, now_s = self._attached.cache, time.monotonic()
        cache.expire(now_s)
        return encoder_pb2.RenewResponse(
            lease_ids=[lease_id for lease_id in request.lease_ids if cache.renew(lease_id, now_s + lease_s)]
        )

    async def Evict(self, request: encoder_pb2.EvictRequest, context: grpc.aio.ServicerContext) -> encoder_pb2.EvictResponse:
        if not request.keys:
            raise InvalidRequestError("keys must not be empty; ResetCache of the control port forgets everything", field="keys")
        pipeline = self._attached
        pipeline.cache.expire(time.monotonic())
        if pipeline.store is not None:
            await pipeline.store.evict(request.keys)
        return encoder_pb2.EvictResponse(num_evicted=pipeline.cache.evict(request.keys))

    async def GetStats(
        self, request: encoder_pb2.GetStatsRequest, context: grpc.aio.ServicerContext
    ) -> encoder_pb2.GetStatsResponse:
        pipeline = self._attached
        cache, counters = pipeline.cache, pipeline.counters
        cache.expire(time.monotonic())
        return encoder_pb2.GetStatsResponse(
            num_entries=len(cache),
            used_bytes=cache.used_bytes,
            capacity_bytes=cache.capacity_bytes,
            leased_bytes=cache.leased_bytes,
            num_leases=cache.num_leases,
            queue_length=len(pipeline.queue),
            num_local_hits=counters.num_local_hits,
            num_shared_hits=counters.num_shared_hits,
            num_joined=counters.num_joined,
            num_misses=counters.num_misses,
            num_evictions=cache.num_evictions,
            num_store_failures=pipeline.store.num_failures if pipeline.store is not None else 0,
            num_failed=pipeline.queue.num_failed,
        )

    async def WatchEvictions(
        self, request: encoder_pb2.WatchEvictionsRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[encoder_pb2.WatchEvictionsResponse]:
        _ = self._attached
        with self._evictions.watch() as watcher:
            # Send an empty response first. From here on the watcher receives every eviction.
            yield encoder_pb2.WatchEvictionsResponse()
            while True:
                yield encoder_pb2.WatchEvictionsResponse(keys=await watcher.take())


def _check_key(key: bytes) -> None:
    if len(key) != _KEY_BYTES:
        raise InvalidRequestError(f"a key has {_KEY_BYTES} bytes; given: {len(key)}", field="key", limit=_KEY_BYTES, value=len(key))


def _within(field: str, value: float, least: float, most: float) -> float:
    if not least <= value <= most:
        raise InvalidRequestError(
            f"{field} must be in [{least:g}, {most:g}]; given: {value:g}", field=field, limit=f"[{least:g}, {most:g}]", value=value
        )
    return value


def _log_item(item: encoder_pb2.EncodeItem, leased: LeasedItem, seconds: float) -> None:
    log.info(
        "item %s %s: %d tokens, %s, %.1f ms (queue %.1f, decode %.1f, preprocess %.1f, encode %.1f)",
        item.key.hex()[:12],
        common_pb2.Modality.Name(item.modality).removeprefix("MODALITY_").lower(),
        leased.item.num_tokens,
        encoder_pb2.CacheTier.Name(leased.tier).removeprefix("CACHE_TIER_").lower(),
        *(1e3 * s for s in (seconds, *_stages(leased))),
    )


def _stages(leased: LeasedItem) -> Sequence[float]:
    times = leased.times
    return times.queue_s, times.decode_s, times.preprocess_s, times.encode_s
