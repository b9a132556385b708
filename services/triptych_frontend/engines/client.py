"""The frontend's side of `EngineService.Session`: one long-lived stream that carries the work of all calls."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import grpc
from triptych_common.pb import common_pb2, engine_pb2, engine_pb2_grpc
from triptych_common.rpc.channels import MAX_MESSAGE_BYTES, open_channel
from triptych_common.rpc.errors import InternalError, InvalidRequestError, ServiceUnavailableError, TriptychError
from triptych_common.rpc.status import from_request_error, from_rpc_error, has_details

log = logging.getLogger(__name__)
#: Pause before connecting again, in seconds; doubles from the first to the last.
MIN_BACKOFF_S, MAX_BACKOFF_S = 0.2, 2.0
#: How long a new session may take to say what the engine serves.
HANDSHAKE_TIMEOUT_S = 30.0
#: Largest request, and most bytes of requests in one message: leaves room for aborts below the channel's limit.
_MAX_ADD_BYTES = MAX_MESSAGE_BYTES // 4

_Session = grpc.aio.StreamStreamCall[engine_pb2.SessionRequest, engine_pb2.SessionResponse]


class Listener(Protocol):
    """Hears what becomes of a call's sequences. Its methods are called on the event loop, and must not raise."""

    def on_output(self, index: int, output: engine_pb2.SequenceOutput) -> None:
        """The engine brought something for the choice of this index. The output keeps its whole step's message in memory."""
        ...

    def on_error(self, error: TriptychError) -> None:
        """The engine refused or failed a sequence, or went away. Nothing more is heard of the call."""
        ...


class EngineCall:
    """The sequences of one call, in the engine."""

    def __init__(self, client: EngineClient, request_ids: Sequence[str], listener: Listener) -> None:
        self._client = client
        self._listener = listener
        #: engine request id -> choice index, of the sequences that have not ended.
        self._live = {request_id: index for index, request_id in enumerate(request_ids)}

    def abort(self, index: int) -> None:
        """End one sequence in the engine. Its last output still comes."""
        for request_id, live_index in self._live.items():
            if live_index == index:
                self._client.abort(request_id)

    def close(self) -> None:
        """End what has not ended, and listen no more. May be called twice."""
        for request_id in self._live:
            self._client.forget(request_id, self)
            self._client.abort(request_id)
        self._live.clear()

    def put(self, output: engine_pb2.SequenceOutput) -> None:
        """Take an output from the session's reader."""
        request_id = output.request_id
        index = self._live.get(request_id)
        if index is None:
            return
        if output.finish_reason:
            del self._live[request_id]
            self._client.forget(request_id, self)
            if output.finish_reason == common_pb2.FINISH_REASON_ERROR:
                self.fail(from_request_error(output.error))
                return
        self._listener.on_output(index, output)

    def fail(self, error: TriptychError) -> None:
        """End the call with an error."""
        self.close()
        self._listener.on_error(error)


class EngineClient:
    """Keeps a session with one engine, and hands each output to the call that it belongs to.

    Args:
        address: host:port of the engine.
        expected: what this frontend serves; an engine of another fingerprint is refused.
        on_change: awaited whenever `is_connected` has changed.
    """

    def __init__(self, address: str, expected: common_pb2.ModelInfo, on_change: Callable[[], Awaitable[None]]) -> None:
        self._address = address
        self._expected = expected
        self._on_change = on_change
        #: engine request id -> call
        self._calls: dict[str, EngineCall] = {}
        self._adds: list[engine_pb2.EngineRequest] = []
        self._aborts: list[str] = []
        self._has_requests = asyncio.Event()
        #: What the connected engine serves; None while there is none.
        self.engine_model: common_pb2.ModelInfo | None = None
        self._why_away = "it was not reached yet"
        #: Whether the last attempt was answered by the engine itself: it loads its model, drains or sleeps.
        self._is_there = False

    @property
    def is_connected(self) -> bool:
        return self.engine_model is not None

    def start(self, requests: Sequence[engine_pb2.EngineRequest], listener: Listener) -> EngineCall:
        """Hand sequences to the engine. Everything that is started before the loop's next turn travels in one message.

        Raises:
            ServiceUnavailableError: the engine is away.
            InvalidRequestError: a request is too large for one message.
            InternalError: a request id is that of a live sequence.
        """
        if not self.is_connected:
            raise ServiceUnavailableError(f"the engine at {self._address} is away: {self._why_away}", retry_after_s=MAX_BACKOFF_S)
        request_ids = [request.request_id for request in requests]
        for request_id in request_ids:
            if request_id in self._calls:
                raise InternalError(f"the engine request id {request_id} is in use")
        for request in requests:
            # Alone it would fail the session, and with it the calls of everybody else.
            if (num_bytes := request.ByteSize()) > _MAX_ADD_BYTES:
                raise InvalidRequestError(
                    f"the request, encoded for the engine, may have at most {_MAX_ADD_BYTES} bytes; it has {num_bytes}",
                    limit=_MAX_ADD_BYTES,
                    value=num_bytes,
                )
        call = EngineCall(self, request_ids, listener)
        self._calls.update(dict.fromkeys(request_ids, call))
        self._adds += requests
        self._has_requests.set()
        return call

    def abort(self, request_id: str) -> None:
        """Ask the engine to end a sequence."""
        if self.is_connected:
            self._aborts.append(request_id)
            self._has_requests.set()

    def forget(self, request_id: str, call: EngineCall) -> None:
        """Drop further outputs of a call's sequence."""
        if self._calls.get(request_id) is call:
            del self._calls[request_id]

    async def run(self) -> None:
        """Connect, and connect again whenever the session is lost, until cancelled."""
        backoff_s = MIN_BACKOFF_S
        async with open_channel(self._address) as channel:
            stub = engine_pb2_grpc.EngineServiceStub(channel)
            while True:
                was_connected = await self._serve_session(stub)
                # One that answers may be ready any moment, and to ask it costs little.
                backoff_s = MIN_BACKOFF_S if was_connected or self._is_there else min(backoff_s * 2, MAX_BACKOFF_S)
                # Jitter keeps many frontends from coming back in the same instant.
                await asyncio.sleep(backoff_s * random.uniform(0.5, 1))

    async def _serve_session(self, stub: engine_pb2_grpc.EngineServiceStub) -> bool:
        """One session from its start to its loss; True when it got as far as serving."""
        session: _Session = stub.Session()
        sender: asyncio.Task[None] | None = None
        level = logging.WARNING
        self._is_there = False
        try:
            model = await asyncio.wait_for(self._handshake(session), HANDSHAKE_TIMEOUT_S)
            if model is None:
                return False
            await self._connected(model)
            sender = asyncio.create_task(self._send(session), name="engine session sender")
            while isinstance(response := await session.read(), engine_pb2.SessionResponse):
                self._dispatch(response)
            self._why_away = "it ended the session"
        except TimeoutError:
            self._lost(f"it did not say within {HANDSHAKE_TIMEOUT_S:g} s what it serves")
        except grpc.aio.AioRpcError as error:
            self._is_there = has_details(error)
            self._lost(from_rpc_error(error).message)
        except asyncio.CancelledError:
            self._why_away, level = "this frontend is stopping", logging.DEBUG
            raise
        finally:
            session.cancel()
            if sender is not None:
                sender.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await sender
            was_connected = self.is_connected
            if was_connected:
                await self._disconnected(level)
        return was_connected

    async def _handshake(self, session: _Session) -> common_pb2.ModelInfo | None:
        """What the engine serves; None when it is not what this frontend serves."""
        first = await session.read()
        if not isinstance(first, engine_pb2.SessionResponse):  # grpc.aio.EOF
            self._lost("it ended the session at once")
            return None
        model: common_pb2.ModelInfo = first.model
        if model.fingerprint == self._expected.fingerprint:
            return model
        self._lost(
            f"it serves another model: {model.name} (fingerprint {model.fingerprint[:12]}), not "
            f"{self._expected.name} (fingerprint {self._expected.fingerprint[:12]})",
            level=logging.ERROR,
        )
        return None

    async def _connected(self, model: common_pb2.ModelInfo) -> None:
        self.engine_model = model
        self._why_away = ""
        log.info("engine at %s serves %s, context %d", self._address, model.name, model.max_model_len)
        await self._on_change()

    async def _disconnected(self, level: int) -> None:
        self.engine_model = None
        log.log(level, "engine at %s went away (%s); %d sequences lost", self._address, self._why_away, len(self._calls))
        self._adds.clear()
        self._aborts.clear()
        calls, self._calls = set(self._calls.values()), {}
        for call in calls:
            call.fail(
                ServiceUnavailableError(
                    f"the engine went away while it worked on this request: {self._why_away}", retry_after_s=MAX_BACKOFF_S
                )
            )
        await self._on_change()

    def _lost(self, why: str, level: int = logging.INFO) -> None:
        """Remember why there is no engine; logged once, not with each attempt, and without alarm: engines start slowly."""
        if not self.is_connected and why != self._why_away:
            log.log(level, "engine at %s is away: %s", self._address, why)
        self._why_away = why

    def _dispatch(self, response: engine_pb2.SessionResponse) -> None:
        for output in response.outputs:
            call = self._calls.get(output.request_id)
            if call is not None:
                call.put(output)

    async def _send(self, session: _Session) -> None:
        """Write what was asked for since the last message, until cancelled or the session is lost."""
        while True:
            await self._has_requests.wait()
            self._has_requests.clear()
            while self._adds or self._aborts:
                message = engine_pb2.SessionRequest(add=self._next_adds())
                if not self._adds:  # an abort must not overtake its own request
                    message.abort.extend(self._aborts)
                    self._aborts = []
                try:
                    await session.write(message)
                except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    return  # the reader sees the same loss, and tells the calls

    def _next_adds(self) -> list[engine_pb2.EngineRequest]:
        num_bytes, num_requests = 0, 0
        for request in self._adds:
            num_bytes += request.ByteSize()
            if num_bytes > _MAX_ADD_BYTES:
                break
            num_requests += 1
        adds, self._adds = self._adds[:num_requests], self._adds[num_requests:]
        return adds
