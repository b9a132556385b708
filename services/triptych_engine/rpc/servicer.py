"""EngineService: gRPC in front of the step loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import grpc
from triptych_common.pb import common_pb2, engine_pb2, engine_pb2_grpc
from triptych_common.rpc.errors import DuplicateRequestError, InvalidRequestError, ServiceUnavailableError, TriptychError

from triptych_engine.core import EngineCore, Load
from triptych_engine.media.item import TEXT_ONLY, MediaTraits
from triptych_engine.rpc.convert import load_message, output_message, to_request
from triptych_engine.rpc.outbox import Mailbox, Outbox
from triptych_engine.scheduling.output import SequenceOutput
from triptych_engine.scheduling.request import FinishReason

log = logging.getLogger(__name__)


class EngineServicer(engine_pb2_grpc.EngineServiceServicer):
    """Serves one EngineCore, from the moment that it is attached; before that, calls are refused as unavailable."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._core: EngineCore | None = None
        self._model = common_pb2.ModelInfo()
        self._capacity_tokens = 0
        self._traits: MediaTraits | str = TEXT_ONLY
        self._load_changed = asyncio.Event()
        self._sessions: set[Mailbox] = set()
        self._refusal: str | None = "the engine is loading its model"  # why no requests are taken; None while they are

    def attach(
        self, core: EngineCore, model: common_pb2.ModelInfo, capacity_tokens: int, traits: MediaTraits | str = TEXT_ONLY
    ) -> None:
        """Take requests from now on.

        Args:
            capacity_tokens: longest sequence that the KV cache holds.
            traits: of a model that takes media; else why it does not.
        """
        self._core, self._model, self._capacity_tokens, self._traits = core, model, capacity_tokens, traits
        self._refusal = None

    def refuse(self, reason: str) -> None:
        """Take no more requests. Sessions end when their last request has, so that frontends know and route elsewhere."""
        self._refusal = reason
        for session in self._sessions:
            session.end_when_idle()

    def accept(self) -> None:
        """Take requests again after `refuse`."""
        self._refusal = None

    def on_load(self, load: Load) -> None:
        """Wake those who watch the load."""
        self._load_changed.set()
        self._load_changed = asyncio.Event()

    @property
    def _attached_core(self) -> EngineCore:
        if self._core is None:
            raise ServiceUnavailableError("the engine is loading its model", retry_after_s=5.0)
        return self._core

    def _check_accepting(self) -> None:
        if self._refusal is not None:
            raise ServiceUnavailableError(self._refusal, retry_after_s=5.0)

    def _submit(self, message: engine_pb2.EngineRequest, mailbox: Mailbox) -> None:
        self._check_accepting()
        request = to_request(message, self._model, self._capacity_tokens, self._traits)
        try:
            mailbox.expect(request.request_id)
        except KeyError as error:
            raise DuplicateRequestError(
                f"request id {request.request_id!r} is in use", field="request_id", value=request.request_id
            ) from error
        self._attached_core.add(request)

    async def Session(
        self, request_iterator: AsyncIterator[engine_pb2.SessionRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[engine_pb2.SessionResponse]:
        self._check_accepting()
        core, mailbox = self._attached_core, Mailbox(self._outbox)
        self._sessions.add(mailbox)
        reader = asyncio.create_task(self._read_session(core, request_iterator, mailbox))
        try:
            yield engine_pb2.SessionResponse(model=self._model, load=load_message(core.load))
            while (taken := await mailbox.take()) is not None:
                step, outputs, load = taken
                yield engine_pb2.SessionResponse(step=step, outputs=map(output_message, outputs), load=load_message(load))
            if reader.done():
                reader.result()
        finally:
            reader.cancel()
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
                    except TriptychError as error:
                        refused = SequenceOutput(request.request_id, finish_reason=FinishReason.ERROR, error=error)
                        mailbox.put(0, [refused], core.load)
                if message.abort:
                    core.abort(list(message.abort))
        finally:
            mailbox.end()

    def _abort_rest(self, mailbox: Mailbox) -> None:
        left = mailbox.close()
        if left:
            self._attached_core.abort(left)

    async def Generate(
        self, request: engine_pb2.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[engine_pb2.GenerateResponse]:
        mailbox = Mailbox(self._outbox)
        try:
            self._submit(request.request, mailbox)
            mailbox.end_when_idle()
            while (taken := await mailbox.take()) is not None:
                for output in taken[1]:
                    if isinstance(output.error, TriptychError):
                        raise output.error
                    yield engine_pb2.GenerateResponse(output=output_message(output))
        finally:
            self._abort_rest(mailbox)

    async def Abort(self, request: engine_pb2.AbortRequest, context: grpc.aio.ServicerContext) -> engine_pb2.AbortResponse:
        aborted = await asyncio.wrap_future(self._attached_core.abort(list(request.request_ids)))
        return engine_pb2.AbortResponse(aborted_request_ids=aborted)

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
            changed, load = self._load_changed, core.load
            yield engine_pb2.WatchLoadResponse(load=load_message(load))
            await asyncio.sleep(interval_s)
            await changed.wait()
