"""EngineService: gRPC in front of the step loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future

import grpc
from triptych.errors import (
    DuplicateRequestError,
    InvalidRequestError,
    ServiceUnavailableError,
    TriptychError,
    UnimplementedError,
)
from triptych.v1 import common_pb2, engine_pb2, engine_pb2_grpc
from triptych_common.model.pooling import PoolingModel
from triptych_common.rpc.tracing import usage_attributes
from triptych_common.telemetry.attributes import NUM_INPUTS
from triptych_common.telemetry.span import Span, SpanKind
from triptych_common.telemetry.tracing import OFF, Tracer

from triptych_engine.core import EngineCore
from triptych_engine.load import Load
from triptych_engine.media.item import TEXT_ONLY, MediaTraits
from triptych_engine.rpc.arrival_notice import ArrivalNotice
from triptych_engine.rpc.block_watch import BlockWatch
from triptych_engine.rpc.convert import load_message, num_refusals, output_message, to_requests
from triptych_engine.rpc.convert_pooling import add_usage, pooled_tensor, to_pooling_requests
from triptych_engine.rpc.outbox import Mailbox, Outbox, Route
from triptych_engine.rpc.preparation import Preparation
from triptych_engine.rpc.sequence_trace import begin_sequences, trace_media
from triptych_engine.scheduling.output import SequenceOutput
from triptych_engine.scheduling.request import FinishReason, Request

log = logging.getLogger(__name__)
#: A session with live requests gets a message at least so often, in seconds.
HEARTBEAT_S = 0.5


class EngineServicer(engine_pb2_grpc.EngineServiceServicer):
    """Serves one EngineCore. Until the core is attached, calls are refused as unavailable.

    Args:
        instance: returns the description of this engine.
    """

    def __init__(self, outbox: Outbox, instance: Callable[[], common_pb2.Instance], tracer: Tracer = OFF) -> None:
        self._outbox = outbox
        self._tracer = tracer
        self._instance = instance
        self._core: EngineCore | None = None
        self._model = common_pb2.ModelInfo()
        self._capacity_tokens = 0
        self._traits: MediaTraits | str = TEXT_ONLY
        self._pooling: PoolingModel | None = None
        #: Called with the name and the digest of each adapter that a request has.
        self.on_lora: Callable[[str, str], None] = lambda name, digest: None
        self.preparation = Preparation(outbox, lambda name, digest: self.on_lora(name, digest))
        self._blocks = BlockWatch(asyncio.get_running_loop())
        self._load_changed = asyncio.Event()
        self._sessions: set[Mailbox] = set()
        self._arrivals = ArrivalNotice(self._sessions, lambda: self._attached_core.current_load())
        self._refusal: str | None = "the engine is loading its model"  # why requests are refused; None while they are accepted

    def attach(
        self,
        core: EngineCore,
        model: common_pb2.ModelInfo,
        capacity_tokens: int,
        traits: MediaTraits | str = TEXT_ONLY,
        pooling: PoolingModel | None = None,
    ) -> None:
        """Accept requests from now on.

        Args:
            capacity_tokens: longest sequence that the KV cache holds.
            traits: traits of a model that takes media; for other models the reason why media are refused.
            pooling: what the model does with its hidden states; None if it generates text.
        """
        self._core, self._model, self._capacity_tokens, self._traits = core, model, capacity_tokens, traits
        core.on_blocks = self._blocks.publish
        self._pooling = pooling
        self._refusal = None

    def refuse(self, reason: str) -> None:
        """Refuse new requests. Frontends are told to send theirs elsewhere; a session ends when its last request has ended."""
        self._refusal = reason
        for session in self._sessions:
            session.go_away(self._attached_core.load)

    def accept(self) -> None:
        """Accept requests again after `refuse`."""
        self._refusal = None

    def tell_model(self) -> None:
        """Tell all sessions that the description of the model has changed."""
        for session in self._sessions:
            session.tell_model(self._attached_core.load)

    def on_load(self, load: Load) -> None:
        """Wake the `WatchLoad` streams."""
        self._load_changed.set()
        self._load_changed = asyncio.Event()

    @property
    def _attached_core(self) -> EngineCore:
        if self._core is None:
            raise ServiceUnavailableError("the engine is loading its model", retry_after_s=5.0)
        return self._core

    @property
    def refusal(self) -> str | None:
        """Why requests are refused; None while they are accepted."""
        return self._refusal

    def check_accepting(self) -> None:
        """Raise ServiceUnavailableError while requests are refused."""
        if self._refusal is not None:
            raise ServiceUnavailableError(self._refusal, retry_after_s=5.0)

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        """Count an error that refuses a request before the step loop knows it."""
        try:
            yield
        except Exception as error:
            self._outbox.statistics.refused(error)
            raise

    def _submit(self, message: engine_pb2.EngineRequest, mailbox: Mailbox) -> None:
        with self._counted():
            self.check_accepting()
            if self._pooling is not None:
                raise UnimplementedError(f"this engine generates no text; it serves {self._model.name} for Embed")
            start_ns = time.time_ns()
            requests = to_requests(message, self._model, self._capacity_tokens, self._traits)
            spans = begin_sequences(self._tracer, message, requests, start_ns)
            self._start(message.request_id, requests, mailbox, spans, message.kv_source)

    def _start(
        self, request_id: str, requests: Sequence[Request], mailbox: Mailbox, spans: Sequence[Span] = (), kv_source: str = ""
    ) -> None:
        try:
            mailbox.expect(request_id, [request.request_id for request in requests], spans)
        except KeyError as error:
            raise DuplicateRequestError(f"request id {request_id!r} is in use", field="request_id", value=request_id) from error
        self.preparation.add(self._attached_core, requests, kv_source)
        self._arrivals.came(mailbox)

    def _abort(self, sequence_ids: Sequence[str]) -> tuple[list[str], Future[list[str]]]:
        """End sequences. Returns the ids of those that were not in the core yet, and of those in it that were alive."""
        core = self._attached_core
        waiting = self.preparation.abort(core, sequence_ids)
        return waiting, core.abort([sequence_id for sequence_id in sequence_ids if sequence_id not in waiting])

    async def Session(
        self, request_iterator: AsyncIterator[engine_pb2.SessionRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[engine_pb2.SessionResponse]:
        self.check_accepting()
        core, mailbox = self._attached_core, Mailbox(self._outbox)
        self._sessions.add(mailbox)
        reader = asyncio.create_task(self._read_session(core, request_iterator, mailbox))
        beats = asyncio.create_task(_beat(core, mailbox))
        try:
            yield engine_pb2.SessionResponse(instance=self._instance(), model=self._model, load=load_message(core.current_load()))
            while (taken := await mailbox.take()) is not None:
                step, outputs, load = taken
                model, mailbox.has_new_model = self._model if mailbox.has_new_model else None, False
                yield engine_pb2.SessionResponse(
                    model=model,
                    step=step,
                    outputs=[output_message(output, route.request_id, route.index) for route, output in outputs],
                    load=load_message(load),
                    going_away=mailbox.is_going_away,
                )
            if reader.done():
                reader.result()
        finally:
            reader.cancel()
            beats.cancel()
            self._sessions.discard(mailbox)
            self._abort_rest(mailbox)

    async def _read_session(
        self, core: EngineCore, request_iterator: AsyncIterator[engine_pb2.SessionRequest], mailbox: Mailbox
    ) -> None:
        try:
            async for message in request_iterator:
                for request in message.add:
                    try:
                        self._submit(request, mailbox)
                    except Exception as error:
                        # The session continues: it also carries other requests.
                        if not isinstance(error, TriptychError):
                            log.exception("unexpected error", extra={"request_id": request.request_id})
                        refused = SequenceOutput(request.request_id, finish_reason=FinishReason.ERROR, error=error)
                        routes = [Route(mailbox, request.request_id, index) for index in range(num_refusals(request))]
                        mailbox.put(0, [(route, refused) for route in routes], core.load)
                aborted = self._outbox.sequences_of(message.abort)
                for sequence in message.abort_sequences:
                    live = self._outbox.sequences_of([sequence.request_id])
                    aborted += {f"{sequence.request_id} {sequence.index}", sequence.request_id}.intersection(live)
                if aborted:
                    self._abort(aborted)
        finally:
            mailbox.end()

    def _abort_rest(self, mailbox: Mailbox) -> None:
        left = mailbox.close()
        if left:
            self._abort(left)

    async def Generate(
        self, request: engine_pb2.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[engine_pb2.GenerateResponse]:
        mailbox = Mailbox(self._outbox)
        try:
            self._submit(request.request, mailbox)
            mailbox.end_when_idle()
            while (taken := await mailbox.take()) is not None:
                for route, output in taken[1]:
                    if isinstance(output.error, TriptychError):
                        raise output.error
                    yield engine_pb2.GenerateResponse(output=output_message(output, route.request_id, route.index))
        finally:
            self._abort_rest(mailbox)

    async def Abort(self, request: engine_pb2.AbortRequest, context: grpc.aio.ServicerContext) -> engine_pb2.AbortResponse:
        sequences = self._outbox.sequences_of(dict.fromkeys(request.request_ids))
        waiting, in_core = self._abort(list(sequences))
        aborted = [*waiting, *await asyncio.wrap_future(in_core)]
        return engine_pb2.AbortResponse(aborted_request_ids=dict.fromkeys(one.partition(" ")[0] for one in aborted))

    async def Describe(
        self, request: engine_pb2.EngineServiceDescribeRequest, context: grpc.aio.ServicerContext
    ) -> engine_pb2.EngineServiceDescribeResponse:
        load = load_message(self._attached_core.current_load())
        return engine_pb2.EngineServiceDescribeResponse(instance=self._instance(), model=self._model, load=load)

    async def Embed(
        self, request: engine_pb2.EngineServiceEmbedRequest, context: grpc.aio.ServicerContext
    ) -> engine_pb2.EngineServiceEmbedResponse:
        with self._counted():
            self.check_accepting()
            requests = to_pooling_requests(request, self._model, self._pooling, self._traits)
        numbers = {one.request_id: number for number, one in enumerate(requests)}
        mailbox, pooled, usage = Mailbox(self._outbox), dict[str, common_pb2.Tensor](), common_pb2.Usage()
        # One span for all of them: a call may have thousands.
        with self._tracer.part("embed", SpanKind.SERVER) as span:
            if span is not None:
                trace_media([span] * len(requests), requests)
            try:
                for one in requests:
                    self._start(one.request_id, [one], mailbox)
                mailbox.end_when_idle()
                while (taken := await mailbox.take()) is not None:
                    for route, output in taken[1]:
                        pooled[route.request_id] = pooled_tensor(output, f"requests[{numbers[route.request_id]}]")
                        add_usage(usage, output)
            finally:
                self._abort_rest(mailbox)
            if span is not None:
                span.attributes |= {NUM_INPUTS: len(requests), **usage_attributes(usage)}
        return engine_pb2.EngineServiceEmbedResponse(embeddings=[pooled[one.request_id] for one in requests], usage=usage)

    async def WatchBlocks(
        self, request: engine_pb2.WatchBlocksRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[engine_pb2.WatchBlocksResponse]:
        async with contextlib.aclosing(self._blocks.responses(self._attached_core)) as responses:
            async for response in responses:
                yield response

    async def WatchLoad(
        self, request: engine_pb2.WatchLoadRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[engine_pb2.WatchLoadResponse]:
        interval_s = request.interval_s if request.HasField("interval_s") else 1.0
        if not 0.01 <= interval_s <= 3600:
            raise InvalidRequestError(
                f"interval_s must be in [0.01, 3600]; given: {interval_s:g}",
                field="interval_s",
                limit="[0.01, 3600]",
                value=interval_s,
            )
        core = self._attached_core
        while True:
            changed, load = self._load_changed, core.current_load()
            yield engine_pb2.WatchLoadResponse(load=load_message(load))
            await asyncio.sleep(interval_s)
            await changed.wait()


async def _beat(core: EngineCore, mailbox: Mailbox) -> None:
    """Tell a session that the engine is there, as long as it has live requests."""
    while True:
        await asyncio.sleep(HEARTBEAT_S)
        mailbox.beat(core.current_load())
