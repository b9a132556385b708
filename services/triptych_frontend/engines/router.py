"""Sends requests to engines. Chooses an engine, and another one if the first did not start the request."""

from __future__ import annotations

import asyncio
from typing import Protocol

from triptych.errors import InternalError, TriptychError
from triptych.status import from_request_error
from triptych.v1 import common_pb2, engine_pb2
from triptych_common.cluster.router import RETRYABLE, Demand, Router

from triptych_frontend.engines.connection import EngineConnection


class Listener(Protocol):
    """Receives the results of a request's sequences. Its methods are called on the event loop, and must not raise."""

    def on_output(self, index: int, output: engine_pb2.SequenceOutput) -> None:
        """The engine sent an output for the sequence at this index. The output keeps its step's whole message in memory."""
        ...

    def on_error(self, index: int, error: TriptychError) -> None:
        """The engine refused or failed this sequence, or was lost. This is the last call for the sequence."""
        ...


class EngineCall:
    """One request and its sequences in an engine. Made by `EngineRouter.start`.

    Args:
        first_index: what listener and caller call the first sequence.
    """

    def __init__(self, router: EngineRouter, request: engine_pb2.EngineRequest, listener: Listener, first_index: int) -> None:
        self._router = router
        self._listener = listener
        self._first_index = first_index
        self.request = request
        #: Indices of the sequences that have not ended.
        self._live = set(range(request.n or 1))
        self._connection: EngineConnection | None = None
        #: On its way to another engine.
        self.placing: asyncio.Task[None] | None = None
        #: Sequences that are to end as soon as an engine has the request.
        self._aborted: set[int] = set()
        #: Instances of engines that got the request.
        self.tried: set[str] = set()
        self._has_output = False
        #: What the engine's breaker gave for this call, and whether it was told of a failure.
        self._generation, self._has_reported = 0, False

    def abort(self, index: int) -> None:
        """End one sequence in the engine. Its last output still arrives."""
        index -= self._first_index
        if index not in self._live:
            return
        self._aborted.add(index)
        if self._connection is not None:
            if self._live == {index}:
                self._connection.abort(self.request.request_id)
            else:
                self._connection.abort_sequence(self.request.request_id, index)

    def close(self) -> None:
        """End all live sequences, and stop listening. May be called twice."""
        if self._live and self._connection is not None:
            self._connection.forget(self.request.request_id)
            self._connection.abort(self.request.request_id)
            self._connection.breaker.ended(self._generation)
        self._live.clear()
        if self.placing is not None:
            self.placing.cancel()

    async def send_to(self, service: EngineConnection) -> None:
        self.hand_to(service)

    def hand_to(self, connection: EngineConnection) -> None:
        """Hand the request to an engine."""
        connection.send(self)
        self._connection = connection
        self._generation, self._has_reported = connection.breaker.begin(), False
        for index in self._live & self._aborted:
            connection.abort_sequence(self.request.request_id, index)

    @property
    def is_live(self) -> bool:
        """Whether anybody still waits for a sequence."""
        return bool(self._live)

    def put(self, output: engine_pb2.SequenceOutput) -> None:
        index = output.index
        if index not in self._live:
            return
        if output.finish_reason == common_pb2.FINISH_REASON_ERROR:
            error = from_request_error(output.error)
            self._report(error)
            if not self._sent_elsewhere(error):
                self._end(index)
                self._listener.on_error(self._first_index + index, error)
            return
        if not self._has_output:
            self._has_output = True
            self._report(None)
        if output.finish_reason:
            self._end(index)
        self._listener.on_output(self._first_index + index, output)

    def lost(self, error: TriptychError) -> None:
        if self._connection is not None:
            self._connection.breaker.ended(self._generation)
        if not self._sent_elsewhere(error):
            self.fail(error)

    def fail(self, error: TriptychError) -> None:
        """End all live sequences with an error."""
        live, self._live = sorted(self._live), set()
        for index in live:
            self._listener.on_error(self._first_index + index, error)

    def _report(self, error: TriptychError | None) -> None:
        """Tell the engine's breaker how the engine took the request. Of its sequences, only the first that fails counts."""
        if self._connection is None:
            return
        if isinstance(error, InternalError):
            if not self._has_reported:
                self._has_reported = True
                self._connection.call_failed(self._generation, error)
        elif error is None:
            self._connection.call_succeeded(self._generation)
        else:
            self._connection.breaker.ended(self._generation)

    def _end(self, index: int) -> None:
        self._live.discard(index)
        if not self._live and self._connection is not None:
            self._connection.forget(self.request.request_id)

    def _sent_elsewhere(self, error: TriptychError) -> bool:
        """Hand the request to another engine, if it has no output yet and another engine is available, or will be in a moment."""
        lost = self._connection
        if not self._live or self._has_output or not isinstance(error, RETRYABLE) or lost is None:
            return False
        self.placing = self._router.place_again(self, demand_of(self.request), error)
        if self.placing is None:
            return False
        lost.forget(self.request.request_id)
        if len(self._live) > 1:  # the engine may have accepted some of the sequences
            lost.abort(self.request.request_id)
        self._connection = None
        return True


class EngineRouter(Router[EngineConnection]):
    """Chooses an engine for each request."""

    def start(self, request: engine_pb2.EngineRequest, listener: Listener, first_index: int = 0) -> EngineCall:
        """Hand a request to an engine. If the last one went away a moment ago, the request waits for another one.

        Args:
            first_index: what the listener calls the first sequence, of a request for a part of its sequences.

        Raises:
            ServiceUnavailableError: no engine is available.
            InvalidRequestError: the request is too large for one message.
            InternalError: a live request has the same request id.
        """
        call, demand = EngineCall(self, request, listener, first_index), demand_of(request)
        connection = self.choose(demand)
        if connection is not None:
            call.tried.add(connection.instance_id)
            call.hand_to(connection)
            return call
        call.placing = self.place_again(call, demand, None)
        if call.placing is None:
            raise self.none_left()
        return call

    async def embed(self, request: engine_pb2.EngineServiceEmbedRequest, request_id: str) -> engine_pb2.EngineServiceEmbedResponse:
        """Vectors of prompts, from the engine that `choose` gives the first one, or from another engine if that does not take them.

        Raises:
            TriptychError: no engine took them, or one failed.
        """

        async def call(engine: EngineConnection) -> engine_pb2.EngineServiceEmbedResponse:
            with engine.counted():
                return await engine.embed(request, request_id)

        return await self.ask(demand_of(request.requests[0]), call)


def demand_of(request: engine_pb2.EngineRequest) -> Demand[EngineConnection]:
    """Requests with the same media prefer the same engine, which may hold the embeddings and the KV cache."""
    return Demand(key=request.media[0].key if request.media else None)
