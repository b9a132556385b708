"""Fetches embeddings from encoders. Runs on the event loop; the step loop's thread submits the orders."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import grpc
import numpy as np
from triptych.errors import Code, EmbeddingUnavailableError, InternalError, TriptychError
from triptych.status import from_request_error, from_rpc_error
from triptych.v1 import common_pb2, encoder_pb2, encoder_pb2_grpc
from triptych_common.cluster.encoder import EncoderConnection, SilentEncoderError
from triptych_common.cluster.pool import Pool
from triptych_common.rpc.channels import was_closed
from triptych_common.rpc.tensors import DTYPE_NAMES, num_bytes
from triptych_common.rpc.tracing import trace_metadata
from triptych_common.telemetry.attributes import MEDIA_KEY, MEDIA_NUM_BYTES
from triptych_common.telemetry.histogram import SECONDS, Histogram
from triptych_common.telemetry.span import SpanKind
from triptych_common.telemetry.trace_context import trace_var
from triptych_common.telemetry.tracing import OFF, Tracer

from triptych_engine.media.item import Embeddings, EmbeddingTensor, FetchOrder, MediaTraits, Modality

log = logging.getLogger(__name__)
_RELEASE_TIMEOUT_S = 5.0
#: The engine's timeout is this much longer than the encoder's, so that the encoder reports its own timeout first.
_GRACE_S = 5.0
#: How long an order waits for the connection to the encoder that it names, in seconds.
_CONNECT_WAIT_S = 3.0
#: Errors of the item itself: encoding it again would not help.
_FINAL_CODES = {Code.INVALID_ARGUMENT, Code.UNIMPLEMENTED, Code.INTERNAL}
#: dtype -> integer type to read its bytes as, and its exponent bits, which are all set in a number that is not finite.
_EXPONENTS = {"float32": ("<u4", 0x7F80_0000), "float16": ("<u2", 0x7C00), "bfloat16": ("<u2", 0x7F80)}

#: Called with the number and the result of each order that was not cancelled.
Deliver = Callable[[int, Embeddings | TriptychError], None]


@dataclass
class FetchStatistics:
    """Counts since the start. The event loop writes them."""

    #: From an order to its embeddings, in seconds. It includes the wait for an item that is still being encoded.
    seconds: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    num_failures: int = 0
    num_bytes: int = 0


class EmbeddingFetcher:
    """Fetches each order with its own gRPC stream.

    Args:
        encoders: the only encoders that are contacted. The fetcher never connects to an address that a request names.
        traits: what embeddings must look like.
        timeout_s: longest wait for an item, including its encoding.
        deliver: receives results; called on the event loop.
        statistics: where the fetches are counted.
    """

    def __init__(
        self,
        encoders: Pool[EncoderConnection],
        traits: MediaTraits,
        timeout_s: float,
        deliver: Deliver,
        statistics: FetchStatistics | None = None,
        tracer: Tracer = OFF,
    ) -> None:
        self._encoders = encoders
        self._tracer = tracer
        self._traits = traits
        self._timeout_s = timeout_s
        self._deliver = deliver
        self._statistics = statistics or FetchStatistics()
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[int, asyncio.Task[None]] = {}  # number of an order -> its fetch
        self._releases: set[asyncio.Task[None]] = set()

    def submit(self, orders: Sequence[FetchOrder], cancelled: Sequence[int]) -> None:
        """Start orders and cancel earlier ones. May be called on any thread; does nothing after the event loop is closed."""
        try:
            self._loop.call_soon_threadsafe(self._submit, list(orders), list(cancelled))
        except RuntimeError:
            if not self._loop.is_closed():
                raise

    async def close(self) -> None:
        """Cancel all fetches."""
        tasks = [*self._tasks.values(), *self._releases]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _submit(self, orders: list[FetchOrder], cancelled: list[int]) -> None:
        for order in orders:
            task = self._tasks[order.number] = asyncio.create_task(self._run(order), name="fetch embeddings")
            # `_run` cannot do this at its end: it is never entered if the task is cancelled before it starts.
            task.add_done_callback(partial(self._forget, order.number))
        for number in cancelled:
            if number in self._tasks:
                self._tasks[number].cancel()

    def _forget(self, number: int, task: asyncio.Task[None]) -> None:
        del self._tasks[number]

    async def _run(self, order: FetchOrder) -> None:
        result: Embeddings | TriptychError
        start_s = time.perf_counter()
        try:
            trace_var.set(order.trace)
            with self._tracer.part(f"fetch {order.modality.value}", SpanKind.CLIENT) as span:
                result = await self._fetch(order)
                self._statistics.seconds.observe(time.perf_counter() - start_s)
                self._statistics.num_bytes += result.num_bytes
                if span is not None:
                    span.attributes |= {MEDIA_KEY: order.key.hex()[:12], MEDIA_NUM_BYTES: result.num_bytes}
        except TriptychError as error:
            result = error
        except Exception as error:
            log.exception("unexpected error while embeddings were fetched from %s", order.encoder_id)
            result = InternalError(f"embeddings could not be fetched ({type(error).__name__}); the engine's log has the details")
        if isinstance(result, TriptychError):
            self._statistics.num_failures += 1
            log.warning("no embeddings of %s from %s: %s", order.key.hex()[:12], order.encoder_id, result)
        self._deliver(order.number, result)

    async def _fetch(self, order: FetchOrder) -> Embeddings:
        encoder = await self._encoder(order.encoder_id)
        try:
            with encoder.in_use():
                embeddings = await encoder.answered(self._receive(encoder.stub, order))
        except grpc.aio.AioRpcError as error:
            raise _unavailable(from_rpc_error(error), error.code().name, encoder.address) from error
        except SilentEncoderError as error:
            raise _unavailable(error, "", encoder.address) from error
        except (grpc.aio.UsageError, asyncio.CancelledError) as error:
            if not was_closed(error):
                raise
            # The encoder's address was removed, so its channel was closed. The request must get an error.
            raise EmbeddingUnavailableError(f"the encoder at {encoder.address} is no longer listed") from error
        await asyncio.to_thread(_check_finite, embeddings)
        if order.lease_id:
            task = asyncio.create_task(_release(encoder, order.lease_id), name="release lease")
            self._releases.add(task)
            task.add_done_callback(self._releases.discard)
        return embeddings

    async def _encoder(self, instance_id: str) -> EncoderConnection:
        if not instance_id:
            raise EmbeddingUnavailableError("the item names no encoder")
        # The frontend may discover a new encoder slightly earlier than this engine.
        encoder = await self._encoders.wait_for_instance(instance_id, _CONNECT_WAIT_S)
        if encoder is None:
            known = ", ".join(endpoint.address for endpoint in self._encoders.endpoints) or "none (encoder_addresses)"
            raise EmbeddingUnavailableError(f"this engine knows no encoder of the instance id {instance_id}; it knows {known}")
        return encoder

    async def _receive(self, stub: encoder_pb2_grpc.EncoderServiceStub, order: FetchOrder) -> Embeddings:
        receiver = _Receiver(order, self._traits)
        request = encoder_pb2.FetchRequest(keys=[order.key], timeout_s=self._timeout_s)
        async for chunk in stub.Fetch(request, timeout=self._timeout_s + _GRACE_S, metadata=trace_metadata()):
            if chunk.HasField("error"):
                raise _unavailable(from_request_error(chunk.error), "", order.encoder_id)
            receiver.take(chunk)
        return receiver.result()


class _Receiver:
    """Assembles an item's chunks directly in buffers of the right size.

    Raises EmbeddingUnavailableError if the chunks do not match the order.
    """

    def __init__(self, order: FetchOrder, traits: MediaTraits) -> None:
        self._order = order
        num_deepstack = 0 if order.modality is Modality.AUDIO else traits.num_deepstack
        self._wanted = {"embeds", *(f"deepstack.{index}" for index in range(num_deepstack))}
        self._shape = (order.num_tokens, traits.hidden_size)
        self._tensors: dict[str, EmbeddingTensor] = {}
        self._received: dict[str, int] = {}  # tensor -> bytes so far

    def take(self, chunk: encoder_pb2.FetchResponse) -> None:
        name = chunk.tensor_name
        if name not in self._wanted:
            if name.startswith("deepstack."):
                raise self._broken(f"{name}, which this engine's model has no layer for")
            return  # layouts: they came with the request
        if chunk.HasField("header"):
            self._begin(name, chunk.header)
        tensor = self._tensors.get(name)
        if tensor is None:
            raise self._broken(f"{name} came without its header")
        data, start = chunk.data, self._received[name]  # each access to a bytes field copies it
        end = start + len(data)
        if end > len(tensor.data):
            raise self._broken(f"{name} is longer than its shape says")
        tensor.data[start:end] = data
        self._received[name] = end

    def _begin(self, name: str, header: common_pb2.Tensor) -> None:
        dtype, shape = DTYPE_NAMES.get(header.dtype, ""), tuple(header.shape)
        if dtype not in _EXPONENTS or shape != self._shape:
            raise self._broken(f"{name} is {dtype} {list(shape)}, not floating-point {list(self._shape)}")
        if name in self._tensors:
            raise self._broken(f"{name} came twice")
        self._tensors[name] = EmbeddingTensor(dtype, shape, bytearray(num_bytes(header)))
        self._received[name] = 0

    def result(self) -> Embeddings:
        missing = sorted(self._wanted - self._tensors.keys())
        if missing:
            raise self._broken(f"{missing[0]} is missing")
        short = [name for name, tensor in self._tensors.items() if self._received[name] < len(tensor.data)]
        if short:
            raise self._broken(f"{short[0]} ended early")
        return Embeddings(self._tensors)

    def _broken(self, what: str) -> TriptychError:
        return EmbeddingUnavailableError(f"the encoder {self._order.encoder_id} sent unusable data: {what}")


def _unavailable(error: TriptychError, status: str, address: str) -> TriptychError:
    """The same error if it is the item's own; else an error saying that this encoder cannot deliver the embeddings."""
    if not status and error.code in _FINAL_CODES:
        return error
    reason = f"{status}: {error.message}" if status else error.message
    return EmbeddingUnavailableError(f"no embeddings from the encoder at {address}: {reason}")


def _check_finite(embeddings: Embeddings) -> None:
    """Raise InternalError if a number is not finite: a single one makes everything that is computed from it useless."""
    for name, tensor in embeddings.tensors.items():
        kind, exponent = _EXPONENTS[tensor.dtype]
        bits = np.frombuffer(tensor.data, kind)
        step = 1 << 20
        if any((bits[i : i + step] & exponent == exponent).any() for i in range(0, math.prod(tensor.shape), step)):
            raise InternalError(f"the encoder's {name} holds numbers that are not finite")


async def _release(encoder: EncoderConnection, lease_id: str) -> None:
    try:
        with encoder.in_use():
            await encoder.stub.Release(encoder_pb2.ReleaseRequest(lease_ids=[lease_id]), timeout=_RELEASE_TIMEOUT_S)
    except (grpc.aio.AioRpcError, grpc.aio.UsageError) as error:
        log.debug("a lease was not released: %s", error)
