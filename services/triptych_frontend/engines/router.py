"""Sends requests to engines. Chooses an engine, and another one if the first did not start the request."""

from __future__ import annotations

import logging
from typing import Protocol

from triptych.errors import InternalError, InvalidRequestError, QueueFullError, ServiceUnavailableError, TriptychError
from triptych.status import from_request_error
from triptych.v1 import common_pb2, engine_pb2
from triptych_common.cluster.pool import Pool

from triptych_frontend.engines.connection import MAX_ADD_BYTES, EngineConnection

log = logging.getLogger(__name__)
#: A request with media goes to the engine that its first item belongs to, which may hold the item's embeddings and KV cache. But if
#: that engine's load is more than this number plus twice the least load, the request goes to the least loaded engine.
_MAX_STICKY_LOAD = 8
#: Errors that another engine may not have.
_RETRYABLE = (ServiceUnavailableError, QueueFullError)


class Listener(Protocol):
    """Receives the results of a request's sequences. Its methods are called on the event loop, and must not raise."""

    def on_output(self, index: int, output: engine_pb2.SequenceOutput) -> None:
        """The engine sent an output for the sequence at this index. The output keeps its step's whole message in memory."""
        ...

    def on_error(self, index: int, error: TriptychError) -> None:
        """The engine refused or failed this sequence, or was lost. This is the last call for the sequence."""
        ...


class EngineCall:
    """One request and its sequences in an engine. Made by `EngineRouter.start`."""

    def __init__(self, router: EngineRouter, request: engine_pb2.EngineRequest, listener: Listener) -> None:
        self._router = router
        self._listener = listener
        self.request = request
        self._request_id = request.request_id
        #: Indices of the sequences that have not ended.
        self._live = set(range(request.n or 1))
        self._connection: EngineConnection | None = None
        #: Engines that refused the request, or were lost before they sent any output.
        self._tried: frozenset[EngineConnection] = frozenset()
        self._has_output = False
        #: What the engine's breaker gave for this call, and whether it was told of a failure.
        self._generation, self._has_reported = 0, False

    def abort(self, index: int) -> None:
        """End one sequence in the engine. Its last output still arrives."""
        if index in self._live and self._connection is not None:
            if self._live == {index}:
                self._connection.abort(self._request_id)
            else:
                self._connection.abort_sequence(self._request_id, index)

    def close(self) -> None:
        """End all live sequences, and stop listening. May be called twice."""
        if self._live and self._connection is not None:
            self._connection.forget(self._request_id)
            self._connection.abort(self._request_id)
            self._connection.breaker.ended(self._generation)
        self._live.clear()

    def send_to(self, connection: EngineConnection) -> None:
        """Hand the request to an engine."""
        self._connection = connection
        self._generation, self._has_reported = connection.breaker.begin(), False
        connection.send(self)

    def put(self, output: engine_pb2.SequenceOutput) -> None:
        index = output.index
        if index not in self._live:
            return
        if output.finish_reason == common_pb2.FINISH_REASON_ERROR:
            error = from_request_error(output.error)
            self._report(error)
            if not self._sent_elsewhere(error):
                self._end(index)
                self._listener.on_error(index, error)
            return
        if not self._has_output:
            self._has_output = True
            self._report(None)
        if output.finish_reason:
            self._end(index)
        self._listener.on_output(index, output)

    def lost(self, error: TriptychError) -> None:
        if self._connection is not None:
            self._connection.breaker.ended(self._generation)
        if not self._sent_elsewhere(error):
            live, self._live = sorted(self._live), set()
            for index in live:
                self._listener.on_error(index, error)

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
            self._connection.forget(self._request_id)

    def _sent_elsewhere(self, error: TriptychError) -> bool:
        """Hand the request to another engine, if it has no output yet and another engine is available."""
        if self._has_output or not isinstance(error, _RETRYABLE) or self._connection is None:
            return False
        self._tried |= {self._connection}
        other = self._router.choose(self.request, exclude=self._tried)
        if other is None:
            return False
        log.info("the engine at %s did not take a request (%s); it goes to %s", self._connection.address, error, other.address)
        self._connection.forget(self._request_id)
        if len(self._live) > 1:  # the engine may have accepted some of the sequences
            self._connection.abort(self._request_id)
        self.send_to(other)
        return True


class EngineRouter:
    """Chooses an engine for each request."""

    def __init__(self, pool: Pool[EngineConnection]) -> None:
        self._pool = pool

    def start(self, request: engine_pb2.EngineRequest, listener: Listener) -> EngineCall:
        """Hand a request to an engine.

        Raises:
            ServiceUnavailableError: no engine is available.
            InvalidRequestError: the request is too large for one message.
            InternalError: a live request has the same request id.
        """
        # Such a message would fail the session, and with it all other calls.
        if (num_bytes := request.ByteSize()) > MAX_ADD_BYTES:
            raise InvalidRequestError(
                f"the request, encoded for the engine, may have at most {MAX_ADD_BYTES} bytes; it has {num_bytes}",
                limit=MAX_ADD_BYTES,
                value=num_bytes,
            )
        connection = self.choose(request)
        if connection is None:
            raise self._pool.none_left()
        call = EngineCall(self, request, listener)
        call.send_to(connection)
        return call

    async def embed(self, request: engine_pb2.EngineServiceEmbedRequest, request_id: str) -> engine_pb2.EngineServiceEmbedResponse:
        """Vectors of prompts, from the engine that `choose` gives the first one, or from another engine if that does not take them.

        Raises:
            TriptychError: no engine took them, or one failed.
        """
        tried: frozenset[EngineConnection] = frozenset()
        failure: TriptychError | None = None
        while (connection := self.choose(request.requests[0], tried)) is not None:
            tried |= {connection}
            generation = connection.breaker.begin()
            try:
                response = await connection.embed(request, request_id)
                connection.call_succeeded(generation)
                return response
            except InternalError as error:
                connection.call_failed(generation, error)
                raise
            except _RETRYABLE as error:
                failure = error
            finally:
                connection.breaker.ended(generation)
        raise failure or self._pool.none_left()

    def choose(
        self, request: engine_pb2.EngineRequest, exclude: frozenset[EngineConnection] = frozenset()
    ) -> EngineConnection | None:
        """The engine for a request; None when there is none."""
        least = self._pool.least_loaded(exclude)
        if least is None or not request.media:
            return least
        own = next((c for c in self._pool.ranked(request.media[0].key) if c not in exclude), least)
        return least if own.is_doubtful or own.load > _MAX_STICKY_LOAD + 2 * least.load else own
