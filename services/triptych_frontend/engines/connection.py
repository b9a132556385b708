"""The connection to one engine over `EngineService.Session`: one long-lived stream that carries the requests of all calls."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import Coroutine
from typing import Any, Protocol

import grpc
from triptych.errors import InternalError, ServiceUnavailableError
from triptych.status import from_rpc_error, is_lost
from triptych.v1 import common_pb2, engine_pb2, engine_pb2_grpc
from triptych_common.arrivals import Arrivals
from triptych_common.cluster.connection import MAX_BACKOFF_S, Carried
from triptych_common.cluster.session import SessionConnection
from triptych_common.rpc.channels import MAX_MESSAGE_BYTES, WORK_TIMEOUT_S, was_closed
from triptych_common.rpc.interceptors import REQUEST_ID_KEY
from triptych_common.rpc.security.tls import Tls
from triptych_common.rpc.tracing import trace_metadata

from triptych_frontend.engines.blocks import BlockIndex

log = logging.getLogger(__name__)
#: An engine sends a message at least every half second while a session has live requests. One from which nothing came for so long
#: has stopped, in seconds.
SILENCE_S = 3.0
#: A step hangs if it has been running for so long, and for so many times the longest of the last steps.
_MIN_HANGING_S, _HANGING_FACTOR = 60.0, 10.0
_TICK_S = 0.25
#: Pause before the blocks are watched again, in seconds.
_WATCH_PAUSE_S = 1.0
#: Of requests that were sent to engines.
_turns = itertools.count()
#: Time between two loads of an engine at which this frontend has no request, in seconds.
_LOAD_INTERVAL_S = 0.5


class CarriedRequest(Carried, Protocol):
    """A request that a connection carries."""

    request: engine_pb2.EngineRequest

    def put(self, output: engine_pb2.SequenceOutput) -> None:
        """The engine sent an output for one of the request's sequences."""
        ...

    def hand_over(self, error: ServiceUnavailableError, *, has_failed: bool) -> None:
        """Go on at another engine, if there is one now. `has_failed`: this one must not get the request again."""
        ...


class EngineConnection(SessionConnection[CarriedRequest, engine_pb2.SessionRequest, engine_pb2.SessionResponse]):
    """A session with the engine at one address.

    Args:
        address: host:port of the engine.
        expected: the model that this frontend serves. An engine with another fingerprint is refused.
        tls: see Connection.
    """

    max_start_bytes = MAX_MESSAGE_BYTES // 4  # leaves space for aborts below the channel's limit

    def __init__(self, address: str, expected: common_pb2.ModelInfo, tls: Tls | None = None) -> None:
        super().__init__("engine", address, tls, engine_pb2.SessionRequest, engine_pb2.SessionResponse)
        self._expected = expected
        self._stub = engine_pb2_grpc.EngineServiceStub(self.channel)
        #: The load of the engine as of its last step.
        self.reported_load = engine_pb2.Load()
        #: Sequences that ran or waited in it. The load of every engine is read for every request, and fields of messages are slow.
        self._num_reported = 0
        #: Sequences that were sent since the engine last reported its load.
        self._num_unreported = 0
        #: As the engine last told, and what was sent since.
        self._arrivals = Arrivals()
        #: Prefixes that the engine holds.
        self.blocks = BlockIndex()
        #: Tokens of prompts that were sent, are not in the engine's prefix cache, and have no output yet.
        self.num_pending_tokens = 0
        #: The engine with the lowest waited longest for a request of this frontend. Each frontend begins in an order of its own, or
        #: all would send their first requests to the same engines.
        self.turn = random.random() - 1
        #: Requests of unary calls in flight.
        self._num_pooling = 0
        #: Ticks of the watch since the last message. Ticks and not the time, which also passes while this process is stopped.
        self._num_silent_ticks = 0

    @property
    def load(self) -> int:
        """Sequences that run or wait in the engine, including those of other frontends."""
        return self._num_reported + self._num_unreported + self._num_pooling

    @property
    def is_for_prompts(self) -> bool:
        """Whether it computes prompts for engines that decode."""
        return self.model.capabilities.kv_role == common_pb2.KV_ROLE_PREFILL

    @property
    def num_recent(self) -> float:
        """Sequences that came to the engine lately, including those of other frontends."""
        return self._arrivals.num_recent

    @property
    def is_idle(self) -> bool:
        return not self.carried and not self._num_pooling

    async def embed(self, request: engine_pb2.EngineServiceEmbedRequest, request_id: str) -> engine_pb2.EngineServiceEmbedResponse:
        """Vectors of prompts. Cancelling it aborts them. Raises TriptychError."""
        self.turn = next(_turns)
        self._num_pooling += len(request.requests)
        metadata = ((REQUEST_ID_KEY, request_id), *trace_metadata())
        try:
            return await self._stub.Embed(request, timeout=WORK_TIMEOUT_S, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            if not is_lost(error):
                raise from_rpc_error(error) from None
            raise self.loss() from None
        except (grpc.aio.UsageError, asyncio.CancelledError) as error:
            if was_closed(error):
                raise self.loss() from None
            raise
        finally:
            self._num_pooling -= len(request.requests)

    def digest_of(self, adapter: str) -> str:
        """The digest of an adapter, as far as the engine knows it."""
        return next((one.digest for one in self.model.adapters if one.name == adapter), "")

    def loss(self) -> ServiceUnavailableError:
        message = f"the engine went away while it worked on this request: {self.why_away}"
        return ServiceUnavailableError(message, retry_after_s=MAX_BACKOFF_S)

    def send(self, call: CarriedRequest) -> None:
        """Hand a request to the engine. Requests of the same event loop iteration are sent in one message.

        Raises:
            InvalidRequestError: the request is too large for one message.
            InternalError: a live request has the same request id.
        """
        request = call.request
        self.check_size(request)
        if request.request_id in self.carried:
            raise InternalError(f"the engine request id {request.request_id} is in use")
        self.start(request.request_id, call, request)
        self.turn = next(_turns)
        self._num_unreported += request.n or 1
        self._arrivals.add(request.n or 1)

    def abort(self, request_id: str) -> None:
        """Ask the engine to end all sequences of a request."""
        if self.is_connected:
            self.ending().abort.append(request_id)

    def abort_sequence(self, request_id: str, index: int) -> None:
        """Ask the engine to end one sequence of a request."""
        if self.is_connected:
            self.ending().abort_sequences.add(request_id=request_id, index=index)

    def forget(self, request_id: str) -> None:
        """Drop further outputs of a request, and the request itself if it was not sent yet."""
        call = self.carried.pop(request_id, None)
        if call is not None and self._starts:
            self._starts = [start for start in self._starts if start is not call.request]

    def open(self) -> grpc.aio.StreamStreamCall[engine_pb2.SessionRequest, engine_pb2.SessionResponse]:
        return self._stub.Session()

    def greeted(self, first: engine_pb2.SessionResponse) -> None:
        self.check_fingerprint(first.model, self._expected)
        self._num_silent_ticks = 0
        self._take_load(first.load)
        self.connected(first.instance, first.model)

    def add_starts(self, message: engine_pb2.SessionRequest, starts: list[engine_pb2.EngineRequest]) -> None:
        message.add.extend(starts)

    def received(self, response: engine_pb2.SessionResponse) -> None:
        if response.HasField("load"):
            self._take_load(response.load)
        if response.HasField("model"):
            self.model = response.model
            self.on_change()
        if response.going_away:  # first: what is refused because of it must not come back
            self.goes_away()
        for output in response.outputs:
            call = self.carried.get(output.request_id)
            if call is not None:
                call.put(output)
        self._num_silent_ticks = 0
        self._trust_again()
        if response.going_away:
            self._hand_over(self.loss(), has_failed=False)

    def beside(self) -> list[Coroutine[Any, Any, None]]:
        return [self._watch(), self._watch_blocks(), self._watch_load()]

    def _take_load(self, load: engine_pb2.Load) -> None:
        was_restarting = self.reported_load.is_restarting
        self.reported_load, self._num_reported, self._num_unreported = load, load.num_running + load.num_waiting, 0
        self._arrivals.set(load.num_recent)
        if load.is_restarting and not was_restarting:
            log.warning("the engine at %s restarts its worker", self.address)
            self.doubt()
        elif was_restarting and not load.is_restarting:
            self._trust_again()

    def _trust_again(self) -> None:
        if self.in_doubt.is_set() and not self._why_stalled:
            log.info("the engine at %s works again", self.address)
            self.in_doubt.clear()
            self.on_change()

    async def _watch_load(self) -> None:
        """Follow the engine's load while no request of this session is there: others may have brought it, and it ends."""
        while True:
            watch = self._stub.WatchLoad(engine_pb2.WatchLoadRequest(interval_s=_LOAD_INTERVAL_S))
            try:
                async for response in watch:
                    if not self.carried:
                        self._take_load(response.load)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                    return
                log.debug("the engine at %s does not tell its load: %s", self.address, error.code().name)
            finally:
                watch.cancel()
            await asyncio.sleep(_WATCH_PAUSE_S)

    async def _watch_blocks(self) -> None:
        """Follow what the engine's prefix cache holds. Older engines do not tell it."""
        while True:
            watch = self._stub.WatchBlocks(engine_pb2.WatchBlocksRequest())
            try:
                async for response in watch:
                    if not self.blocks.update(response):
                        log.warning("changes of the prefix cache of the engine at %s are missing; asking anew", self.address)
                        break
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                    return
                log.debug("the engine at %s does not tell its blocks: %s", self.address, error.code().name)
            finally:
                watch.cancel()
            await asyncio.sleep(_WATCH_PAUSE_S)

    async def disconnected(self) -> None:
        self.blocks.clear()
        await super().disconnected()
        self.num_pending_tokens = 0

    async def _watch(self) -> None:
        """Let requests go on elsewhere when the engine has stopped, or its step hangs, although the connection stands."""
        while True:
            await asyncio.sleep(_TICK_S)
            # An engine without requests of this session has nothing to say.
            self._num_silent_ticks = self._num_silent_ticks + 1 if self.carried else 0
            if self.carried and self.model.capabilities.continuation and (why := self._why_stalled):
                if not self.in_doubt.is_set():
                    log.warning("the engine at %s is stalled: %s", self.address, why)
                    self.doubt()
                message = f"the engine is stalled: {why}"
                self._hand_over(ServiceUnavailableError(message, retry_after_s=MAX_BACKOFF_S), has_failed=True)

    @property
    def _why_stalled(self) -> str:
        """Why it seems that the engine does not go on; empty if it does."""
        silent_s, load = self._num_silent_ticks * _TICK_S, self.reported_load
        if silent_s >= SILENCE_S:
            return f"nothing came from it for {silent_s:.1f} s"
        if load.is_restarting:
            return "it restarts its worker"
        if load.step_age_s > max(_MIN_HANGING_S, _HANGING_FACTOR * load.longest_step_s):
            return f"its step has been running for {load.step_age_s:.1f} s"
        return ""

    def _hand_over(self, error: ServiceUnavailableError, *, has_failed: bool) -> None:
        for call in list(self.carried.values()):
            call.hand_over(error, has_failed=has_failed)
