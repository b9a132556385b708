"""The connection to one engine over `EngineService.Session`: one long-lived stream that carries the requests of all calls."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Protocol

import grpc
from triptych.errors import InternalError, ServiceUnavailableError
from triptych.status import from_rpc_error, has_details
from triptych.v1 import common_pb2, engine_pb2, engine_pb2_grpc
from triptych_common.cluster.connection import MAX_BACKOFF_S, Carried, Connection
from triptych_common.rpc.channels import MAX_MESSAGE_BYTES, WORK_TIMEOUT_S, was_closed
from triptych_common.rpc.interceptors import REQUEST_ID_KEY
from triptych_common.rpc.security.tls import Tls
from triptych_common.rpc.tracing import trace_metadata

log = logging.getLogger(__name__)
#: Longest wait for the first message of a new session, in which the engine describes itself, in seconds.
HANDSHAKE_TIMEOUT_S = 30.0
#: Largest request, and most bytes of requests in one message. Leaves space for aborts below the channel's limit.
MAX_ADD_BYTES = MAX_MESSAGE_BYTES // 4

_Session = grpc.aio.StreamStreamCall[engine_pb2.SessionRequest, engine_pb2.SessionResponse]


class CarriedRequest(Carried, Protocol):
    """A request that a connection carries."""

    request: engine_pb2.EngineRequest

    def put(self, output: engine_pb2.SequenceOutput) -> None:
        """The engine sent an output for one of the request's sequences."""
        ...


class EngineConnection(Connection):
    """A session with the engine at one address.

    Args:
        address: host:port of the engine.
        expected: the model that this frontend serves. An engine with another fingerprint is refused.
        tls: see Connection.
    """

    def __init__(self, address: str, expected: common_pb2.ModelInfo, tls: Tls | None = None) -> None:
        super().__init__("engine", address, tls)
        self._expected = expected
        self._stub = engine_pb2_grpc.EngineServiceStub(self.channel)
        #: engine request id -> the request
        self._carried: dict[str, CarriedRequest] = {}
        self._adds: list[engine_pb2.EngineRequest] = []
        self._aborts: list[str] = []
        self._sequence_aborts: list[engine_pb2.SequenceId] = []
        self._has_requests = asyncio.Event()
        #: The load of the engine as of its last step.
        self.reported_load = engine_pb2.Load()
        #: Sequences that were sent since the engine last reported its load.
        self._num_unreported = 0
        #: Requests of unary calls in flight.
        self._num_pooling = 0

    @property
    def load(self) -> int:
        """Sequences that run or wait in the engine, including those of other frontends."""
        reported = self.reported_load
        return reported.num_running + reported.num_waiting + self._num_unreported + self._num_pooling

    @property
    def is_idle(self) -> bool:
        return not self._carried and not self._num_pooling

    async def embed(self, request: engine_pb2.EngineServiceEmbedRequest, request_id: str) -> engine_pb2.EngineServiceEmbedResponse:
        """Vectors of prompts. Cancelling it aborts them. Raises TriptychError."""
        self._num_pooling += len(request.requests)
        try:
            metadata = ((REQUEST_ID_KEY, request_id), *trace_metadata())
            return await self._stub.Embed(request, timeout=WORK_TIMEOUT_S, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            if has_details(error) or error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise from_rpc_error(error) from None
            raise self._went_away() from None
        except (grpc.aio.UsageError, asyncio.CancelledError) as error:
            if was_closed(error):
                raise self._went_away() from None
            raise
        finally:
            self._num_pooling -= len(request.requests)

    def _went_away(self) -> ServiceUnavailableError:
        message = f"the engine went away while it worked on this request: {self.why_away}"
        return ServiceUnavailableError(message, retry_after_s=MAX_BACKOFF_S)

    def send(self, carried: CarriedRequest) -> None:
        """Hand a request to the engine. Requests of the same event loop iteration are sent in one message.

        Raises:
            InternalError: a live request has the same request id.
        """
        request = carried.request
        if request.request_id in self._carried:
            raise InternalError(f"the engine request id {request.request_id} is in use")
        self._carried[request.request_id] = carried
        self._adds.append(request)
        self._num_unreported += request.n or 1
        self._has_requests.set()

    def abort(self, request_id: str) -> None:
        """Ask the engine to end all sequences of a request."""
        if self.is_connected:
            self._aborts.append(request_id)
            self._has_requests.set()

    def abort_sequence(self, request_id: str, index: int) -> None:
        """Ask the engine to end one sequence of a request."""
        if self.is_connected:
            self._sequence_aborts.append(engine_pb2.SequenceId(request_id=request_id, index=index))
            self._has_requests.set()

    def forget(self, request_id: str) -> None:
        """Drop further outputs of a request."""
        self._carried.pop(request_id, None)

    async def serve(self) -> str:
        session: _Session = self._stub.Session()
        sender: asyncio.Task[None] | None = None
        try:
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                first = await session.read()
            if not isinstance(first, engine_pb2.SessionResponse):  # grpc.aio.EOF
                return "it ended the session at once"
            self.check_fingerprint(first.model, self._expected)
            self.reported_load, self._num_unreported = first.load, 0
            self.connected(first.instance, first.model)
            sender = asyncio.create_task(self._send(session), name="engine session sender")
            while isinstance(response := await session.read(), engine_pb2.SessionResponse):
                self._dispatch(response)
            return "it ended the session"
        finally:
            session.cancel()
            if sender is not None:
                sender.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await sender

    async def disconnected(self) -> None:
        self._adds.clear()
        self._aborts.clear()
        self._sequence_aborts.clear()
        carried, self._carried = list(self._carried.values()), {}
        if carried:
            log.warning("%d requests were at the engine at %s", len(carried), self.address)
        self.tell_lost(carried, self._went_away())

    def _dispatch(self, response: engine_pb2.SessionResponse) -> None:
        if response.HasField("load"):
            self.reported_load, self._num_unreported = response.load, 0
        if response.going_away:  # first: what is refused because of it must not come back
            self.goes_away()
        for output in response.outputs:
            carried = self._carried.get(output.request_id)
            if carried is not None:
                carried.put(output)

    async def _send(self, session: _Session) -> None:
        """Write all requests and aborts since the last message, until cancelled or the session is lost."""
        while True:
            await self._has_requests.wait()
            self._has_requests.clear()
            while self._adds or self._aborts or self._sequence_aborts:
                message = engine_pb2.SessionRequest(add=self._next_adds())
                if not self._adds:  # an abort must not overtake its own request
                    message.abort.extend(self._aborts)
                    message.abort_sequences.extend(self._sequence_aborts)
                    self._aborts, self._sequence_aborts = [], []
                try:
                    await session.write(message)
                except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    return  # the reader also sees this loss, and informs the calls

    def _next_adds(self) -> list[engine_pb2.EngineRequest]:
        num_bytes, num_requests = 0, 0
        for request in self._adds:
            num_bytes += request.ByteSize()
            if num_bytes > MAX_ADD_BYTES:
                break
            num_requests += 1
        adds, self._adds = self._adds[:num_requests], self._adds[num_requests:]
        return adds
