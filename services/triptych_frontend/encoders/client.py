"""The frontend's client of EncoderService: has one media item encoded, by one encoder or another.

For each item these steps are taken in order, until one succeeds. Each step is counted in `EncoderClient.counts`.

1. Ask the encoder that the item belongs to, first with the key only. If it does not hold the key, send the file.
2. Ask the same encoder once more, unless its queue is full, or it did not answer and does not say who it is.
3. Ask the other encoders.
4. Raise an error, for this request only.

An encoder that did not answer comes after all others, until it describes itself again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import grpc
from triptych.errors import (
    Code,
    EmbeddingUnavailableError,
    InvalidRequestError,
    QueueFullError,
    ServiceUnavailableError,
    TriptychError,
)
from triptych.status import from_request_error, from_rpc_error, is_lost
from triptych.v1 import encoder_pb2
from triptych_common.cluster.encoder import EncoderConnection, SilentEncoderError
from triptych_common.host.fair_share import ServiceShare
from triptych_common.rpc.channels import was_closed
from triptych_common.rpc.interceptors import REQUEST_ID_KEY
from triptych_common.rpc.principal import tenant_of_salt
from triptych_common.rpc.structs import to_struct
from triptych_common.rpc.tracing import trace_metadata
from triptych_common.telemetry.attributes import MEDIA_KEY, MEDIA_MODALITY
from triptych_common.telemetry.histogram import SECONDS, Histograms
from triptych_common.telemetry.logs import request_id_var
from triptych_common.telemetry.span import SpanKind
from triptych_common.telemetry.tracing import OFF, Tracer

from triptych_frontend.encoders.item import Encoded, Lease
from triptych_frontend.encoders.pool import EncoderPool
from triptych_frontend.errors import refusal, renamed
from triptych_frontend.media.item import MODALITY_NAMES, PreparedMedia

log = logging.getLogger(__name__)
#: How long an encoder keeps an embedding for the engine, in seconds. After that, a waiting request has the item encoded again.
LEASE_S = 60.0
#: How long a request waits for an encoder's answer to a key before it goes to the engine, in seconds. Most encoders answer within a
#: millisecond. An encoder that is encoding the item for another request answers when it is done.
_ASK_S = 2.0
_RELEASE_TIMEOUT_S = 5.0
#: Most items whose files are being sent or encoded at the same time. It bounds this frontend's share of the encoders' queues.
_MAX_UPLOADS = 256


class EncoderClient:
    """Has media encoded. Use it on the event loop only.

    Args:
        pool: the encoders. The owner of the pool runs it.
        encode_timeout_s: longest wait for one answer of an encoder.
    """

    def __init__(self, pool: EncoderPool, encode_timeout_s: float, tracer: Tracer = OFF) -> None:
        self._pool = pool
        self._tracer = tracer
        self._timeout_s = encode_timeout_s
        self._tasks: set[asyncio.Task[None]] = set()
        self._uploads = ServiceShare(_MAX_UPLOADS)
        #: Counts of events. Written here: local, shared, joined, miss (tiers of results), bytes_sent, same_encoder, other_encoder
        #: (steps 2 and 3). Written by MediaEncoding and MediaCall: again (embeddings were encoded again because the engine could
        #: not fetch them), resubmitted (requests were sent to the engine again), failed (items that could not be encoded).
        self.counts: Counter[str] = Counter()
        #: From a request to an encoder to its answer, by tier, in seconds.
        self.seconds = Histograms(SECONDS)

    def ranked(self, key: bytes) -> list[EncoderConnection]:
        """Encoders for a key, best first. Raises ServiceUnavailableError when there are none."""
        ranked = self._pool.ranked(key)
        if not ranked:
            raise self._pool.none_left()
        return ranked

    def encoder_id_of(self, key: bytes) -> str:
        """The instance id of the encoder that a key belongs to. Raises ServiceUnavailableError when there is none."""
        return self.ranked(key)[0].instance_id

    async def encode(self, item: PreparedMedia, on_asked: Callable[[], None]) -> Encoded:
        """Encode one item, in the steps described above. Raises the error of the last step, which names the item.

        Args:
            on_asked: called when the first encoder knows the key, or did not answer in time. May be called several times.
        """
        modality = MODALITY_NAMES[item.modality]
        with self._tracer.part(f"encode {modality}", SpanKind.CLIENT) as span:
            if span is not None:
                span.attributes |= {MEDIA_MODALITY: modality, MEDIA_KEY: item.key.hex()[:12]}
            return await self._encode(item, on_asked)

    async def _encode(self, item: PreparedMedia, on_asked: Callable[[], None]) -> Encoded:
        ranked = self.ranked(item.key)
        error: TriptychError | None = None
        for number, encoder in enumerate([ranked[0], ranked[0], *ranked[1:]]):
            if number == 1 and isinstance(error, (QueueFullError, SilentEncoderError)):
                continue  # its queue is probably still full, or it still does not answer
            if number:
                self.counts["same_encoder" if number == 1 else "other_encoder"] += 1
            try:
                with encoder.in_use(), encoder.counted():
                    return await self._encode_at(encoder, item, on_asked)
            except InvalidRequestError:
                raise
            except TriptychError as failure:
                error = failure
                log.warning("encoder at %s failed for %s: %s", encoder.address, item.field, error)
        if isinstance(error, EmbeddingUnavailableError) and not item.file.is_dropped:
            # The client sent only the item's uuid, and can send the file.
            raise InvalidRequestError(error.message, field=f"{item.field}.uuid") from error
        assert error is not None  # noqa: S101 - `ranked` has at least one encoder
        raise _named(error, item)

    async def _encode_at(self, encoder: EncoderConnection, item: PreparedMedia, on_asked: Callable[[], None]) -> Encoded:
        """Ask one encoder, first with the key only. Raises TriptychError."""
        start_s = time.perf_counter()
        impatience = asyncio.get_running_loop().call_later(_ASK_S, on_asked)
        try:
            result = await self._call(encoder, item, b"")
        finally:
            impatience.cancel()
            on_asked()
        if result.HasField("error") and result.error.code == Code.NOT_FOUND:
            content = item.file.content
            if content is None:
                raise EmbeddingUnavailableError(f"the encoder no longer holds {item.field}; send the item itself")
            self.counts["bytes_sent"] += 1
            async with self._uploads.held(tenant_of_salt(item.tenant_salt)):
                result = await self._call(encoder, item, content)
        if result.HasField("error"):
            if result.error.field == "key":
                # The encoder restarted with other weights after the key was computed.
                raise ServiceUnavailableError(f"the encoder at {encoder.address} has changed its model", retry_after_s=1)
            raise _named(from_request_error(result.error), item)
        if result.num_tokens != item.expansion.num_embeds:
            await self._release(encoder, [result.lease_id])
            problem = f"is not what its header says: it has {result.num_tokens} embeddings, not {item.expansion.num_embeds}"
            raise refusal(item.field, problem, item.expansion.num_embeds, result.num_tokens)
        tier = encoder_pb2.CacheTier.Name(result.tier).removeprefix("CACHE_TIER_").lower()
        self.counts[tier] += 1
        timings, elapsed_s = result.timings, time.perf_counter() - start_s
        self.seconds[tier].observe(elapsed_s)
        inside_s = timings.queue_s + timings.decode_s + timings.preprocess_s + timings.encode_s
        return Encoded(encoder.instance_id, result, max(elapsed_s - inside_s, 0.0))

    async def _call(self, encoder: EncoderConnection, item: PreparedMedia, content: bytes) -> encoder_pb2.EncodeResult:
        request = encoder_pb2.EncodeRequest(
            items=[
                encoder_pb2.EncodeItem(
                    key=item.key,
                    modality=item.modality,
                    data=content,
                    processor_options=to_struct(item.options),
                    tenant_salt=item.tenant_salt,
                )
            ],
            lease_s=LEASE_S,
        )
        try:
            metadata = ((REQUEST_ID_KEY, request_id_var.get()), *trace_metadata())
            response = await encoder.answered(encoder.stub.Encode(request, timeout=self._timeout_s, metadata=metadata))
        except grpc.aio.AioRpcError as error:
            if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
                encoder.doubt()
                message = f"the encoder at {encoder.address} did not answer within {self._timeout_s:g} s (encode_timeout_s)"
                raise SilentEncoderError(message, retry_after_s=1) from error
            if is_lost(error):
                message = f"the encoder at {encoder.address} went away"
                raise ServiceUnavailableError(message, retry_after_s=1) from error
            raise from_rpc_error(error) from error
        except (grpc.aio.UsageError, asyncio.CancelledError) as error:
            if was_closed(error):
                raise ServiceUnavailableError(f"the encoder at {encoder.address} was removed", retry_after_s=1) from error
            raise
        if len(response.results) != 1:
            raise ServiceUnavailableError(f"the encoder answered with {len(response.results)} results for one item")
        return response.results[0]

    def release(self, leases: Sequence[Lease]) -> None:
        """End leases in the background. If this fails, they expire on their own."""
        by_encoder: dict[str, list[str]] = {}
        for instance_id, lease_id in leases:
            by_encoder.setdefault(instance_id, []).append(lease_id)
        for instance_id, lease_ids in by_encoder.items():
            encoder = self._pool.by_instance(instance_id)
            if encoder is not None:
                self.in_background(self._release(encoder, lease_ids))

    def in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work that only `close` waits for."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _release(self, encoder: EncoderConnection, lease_ids: Sequence[str]) -> None:
        try:
            with encoder.in_use():
                await encoder.stub.Release(encoder_pb2.ReleaseRequest(lease_ids=lease_ids), timeout=_RELEASE_TIMEOUT_S)
        except (grpc.aio.AioRpcError, grpc.aio.UsageError) as error:
            log.debug("leases at %s were not released: %s", encoder.address, error)

    async def close(self) -> None:
        """Wait for the background work."""
        while self._tasks:  # closing an encoding starts the release of its leases
            await asyncio.gather(*self._tasks, return_exceptions=True)


def _named(error: TriptychError, item: PreparedMedia) -> TriptychError:
    """The same error, with the item's field."""
    return renamed(error, item.field, error.message if item.field in error.message else f"{item.field}: {error.message}")
