"""The frontend's side of EncoderService: has one media item encoded, by one encoder or another.

For each item these steps are taken in order, until one succeeds. Each is counted in `EncoderClient.counts`.

1. The encoder that the item belongs to: by key alone, and with the bytes when it does not hold the key.
2. The same encoder once more, unless it is full or did not answer.
3. The other encoders.
4. An error, for this request alone.

An encoder that did not answer is used again as soon as it answers at all.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import grpc
from triptych_common.cluster.encoder import EncoderConnection
from triptych_common.errors import (
    Code,
    EmbeddingUnavailableError,
    InvalidRequestError,
    QueueFullError,
    ServiceUnavailableError,
    TriptychError,
)
from triptych_common.pb import encoder_pb2
from triptych_common.rpc.channels import is_being_cancelled
from triptych_common.rpc.status import from_request_error, from_rpc_error, has_details
from triptych_common.rpc.structs import to_struct

from triptych_frontend.encoders.item import Encoded, Lease
from triptych_frontend.encoders.pool import EncoderPool
from triptych_frontend.media.item import PreparedMedia

log = logging.getLogger(__name__)
#: How long an encoder keeps an embedding for the engine, in seconds. A request that waits longer has it encoded again.
LEASE_S = 60.0
#: How long a request waits for an encoder to say whether it holds a key before it goes to the engine, in seconds. Most encoders
#: answer in a millisecond. One that is encoding the item for another request answers when that is done.
_ASK_S = 2.0
_RELEASE_TIMEOUT_S = 5.0
#: Statuses of a connection to an encoder that ended or was not there.
_TRANSPORT_LOST = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
#: Most items whose bytes are being sent or encoded at the same time. It bounds what this frontend puts into its encoders' queues.
_MAX_UPLOADS = 256


class EncoderClient:
    """Has media encoded. For the event loop alone.

    Args:
        pool: the encoders. Its owner runs it.
        encode_timeout_s: longest wait for one answer of an encoder.
    """

    def __init__(self, pool: EncoderPool, encode_timeout_s: float) -> None:
        self._pool = pool
        self._timeout_s = encode_timeout_s
        self._tasks: set[asyncio.Task[None]] = set()
        self._uploads = asyncio.Semaphore(_MAX_UPLOADS)
        #: What happened how often. Written here: local, shared, joined, miss (tiers of results), bytes_sent, same_encoder,
        #: other_encoder (steps 2 and 3). Written by MediaEncoding and MediaCall: again (embeddings that the engine could not fetch
        #: were made again), resubmitted (requests were sent to the engine again), failed (items that could not be had).
        self.counts: Counter[str] = Counter()

    def ranked(self, key: bytes) -> list[EncoderConnection]:
        """Encoders for a key, best first. Raises ServiceUnavailableError when there is none."""
        ranked = self._pool.ranked(key)
        if not ranked:
            raise self._pool.none_left()
        return ranked

    def encoder_id_of(self, key: bytes) -> str:
        """The instance id of the encoder that a key belongs to. Raises ServiceUnavailableError when there is none."""
        return encoder_id(self.ranked(key)[0])

    async def encode(self, item: PreparedMedia, on_asked: Callable[[], None]) -> Encoded:
        """Encode one item, step by step as described above. Raises the error of the last step, naming the item.

        Args:
            on_asked: called when the first encoder knows the key, or did not answer in time. May be called more than once.
        """
        ranked = self.ranked(item.key)
        error: TriptychError | None = None
        for number, encoder in enumerate([ranked[0], ranked[0], *ranked[1:]]):
            if number == 1 and isinstance(error, (QueueFullError, _SilentEncoderError)):
                continue  # its queue is still full, or it still does not answer
            if number:
                self.counts["same_encoder" if number == 1 else "other_encoder"] += 1
            try:
                return await self._encode_at(encoder, item, on_asked)
            except InvalidRequestError:
                raise
            except TriptychError as failure:
                error = failure
                log.warning("encoder at %s failed for %s: %s", encoder.address, item.field, error)
        if isinstance(error, EmbeddingUnavailableError) and not item.file.is_dropped:
            # The client named it by its uuid alone, and can send it.
            raise InvalidRequestError(error.message, field=f"{item.field}.uuid") from error
        assert error is not None  # noqa: S101 - there is at least one encoder
        raise _named(error, item)

    async def _encode_at(self, encoder: EncoderConnection, item: PreparedMedia, on_asked: Callable[[], None]) -> Encoded:
        """Ask one encoder, by key alone first. Raises TriptychError."""
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
            async with self._uploads:
                result = await self._call(encoder, item, content)
        if result.HasField("error"):
            if result.error.field == "key":
                # It was restarted with other weights after the key was made.
                raise ServiceUnavailableError(f"the encoder at {encoder.address} has changed its model", retry_after_s=1)
            raise _named(from_request_error(result.error), item)
        if result.num_tokens != item.expansion.num_embeds:
            await self._release(encoder, [result.lease_id])
            raise InvalidRequestError(
                f"{item.field} is not what its header says: it has {result.num_tokens} embeddings, not {item.expansion.num_embeds}",
                field=item.field,
                limit=item.expansion.num_embeds,
                value=result.num_tokens,
            )
        tier = encoder_pb2.CacheTier.Name(result.tier).removeprefix("CACHE_TIER_").lower()
        self.counts[tier] += 1
        timings = result.timings
        inside_s = timings.queue_s + timings.decode_s + timings.preprocess_s + timings.encode_s
        return Encoded(encoder_id(encoder), result, max(time.perf_counter() - start_s - inside_s, 0.0))

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
            response = await encoder.stub.Encode(request, timeout=self._timeout_s)
        except grpc.aio.AioRpcError as error:
            if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
                encoder.doubt()
                message = f"the encoder at {encoder.address} did not answer within {self._timeout_s:g} s (encode_timeout_s)"
                raise _SilentEncoderError(message, retry_after_s=1) from error
            if error.code() in _TRANSPORT_LOST and not has_details(error):
                message = f"the encoder at {encoder.address} went away"
                raise ServiceUnavailableError(message, retry_after_s=1) from error
            raise from_rpc_error(error) from error
        except (asyncio.CancelledError, grpc.aio.UsageError) as error:
            if is_being_cancelled():
                raise
            # Its address is gone, and the channel was closed.
            raise ServiceUnavailableError(f"the encoder at {encoder.address} is no longer known", retry_after_s=1) from error
        if len(response.results) != 1:
            raise ServiceUnavailableError(f"the encoder answered with {len(response.results)} results for one item")
        return response.results[0]

    def release(self, leases: Sequence[Lease]) -> None:
        """End leases in the background. Where this fails, they end by themselves."""
        by_encoder: dict[str, list[str]] = {}
        for instance_id, lease_id in leases:
            by_encoder.setdefault(instance_id, []).append(lease_id)
        for instance_id, lease_ids in by_encoder.items():
            encoder = self._pool.by_instance(instance_id)
            if encoder is not None:
                self.in_background(self._release(encoder, lease_ids))

    def in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work that nothing but `close` waits for."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _release(self, encoder: EncoderConnection, lease_ids: Sequence[str]) -> None:
        try:
            await encoder.stub.Release(encoder_pb2.ReleaseRequest(lease_ids=lease_ids), timeout=_RELEASE_TIMEOUT_S)
        except (grpc.aio.AioRpcError, grpc.aio.UsageError) as error:
            log.debug("leases at %s were not released: %s", encoder.address, error)

    async def close(self) -> None:
        """Wait for what runs in the background."""
        while self._tasks:  # closing an encoding starts the release of its leases
            await asyncio.gather(*self._tasks, return_exceptions=True)


def encoder_id(encoder: EncoderConnection) -> str:
    """The instance id, by which the engine finds the encoder. Empty when the encoder went away meanwhile."""
    return encoder.instance.id if encoder.instance is not None else ""


class _SilentEncoderError(ServiceUnavailableError):
    """An encoder accepted a call and did not answer it."""


def _named(error: TriptychError, item: PreparedMedia) -> TriptychError:
    """The same error, saying which item it is about."""
    message = error.message if item.field in error.message else f"{item.field}: {error.message}"
    return type(error)(message, field=item.field, limit=error.limit, value=error.value, retry_after_s=error.retry_after_s)
