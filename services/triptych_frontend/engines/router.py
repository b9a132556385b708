"""Sends requests to engines. Chooses an engine, and another one if the first did not start the request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Set
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
        self._instance_id = ""
        #: The wait for an engine.
        self.waiting: asyncio.Task[None] | None = None
        #: Sequences that are to end as soon as an engine has the request.
        self._aborted: set[int] = set()
        #: Instances of engines that refused the request, or were lost before they sent any output.
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
        if self.waiting is not None:
            self.waiting.cancel()

    def send_to(self, connection: EngineConnection) -> None:
        """Hand the request to an engine."""
        self._connection, self._instance_id = connection, connection.instance_id
        self._generation, self._has_reported = connection.breaker.begin(), False
        connection.send(self)
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
        if not self._live or self._has_output or not isinstance(error, _RETRYABLE) or self._connection is None:
            return False
        lost = self._connection
        self.tried.add(self._instance_id)
        if self._router.choose(self.request, self.tried) is None and self._router.grace_left_s(self.tried, error) <= 0:
            return False
        log.info("the engine at %s did not take a request (%s); another one gets it", lost.address, error)
        lost.forget(self.request.request_id)
        if len(self._live) > 1:  # the engine may have accepted some of the sequences
            lost.abort(self.request.request_id)
        self._connection = None
        self._router.send(self, error)
        return True


class EngineRouter:
    """Chooses an engine for each request."""

    def __init__(self, pool: Pool[EngineConnection]) -> None:
        self._pool = pool
        #: Calls that wait for an engine.
        self._waiting: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def close(self) -> None:
        """End the waits for engines, with their calls."""
        self._is_closed = True
        for task in self._waiting:
            task.cancel()
        await asyncio.gather(*self._waiting, return_exceptions=True)

    async def until_there(self) -> None:
        """Wait for an engine, but only if there was one a moment ago, as in a rolling restart."""
        if not self._pool.ready:
            await self._pool.until(lambda: bool(self._pool.ready), self.grace_left_s())

    def start(self, request: engine_pb2.EngineRequest, listener: Listener, first_index: int = 0) -> EngineCall:
        """Hand a request to an engine. If the last one went away a moment ago, the request waits for another one.

        Args:
            first_index: what the listener calls the first sequence, of a request for a part of its sequences.

        Raises:
            ServiceUnavailableError: no engine is available.
            InvalidRequestError: the request is too large for one message.
            InternalError: a live request has the same request id.
        """
        # Such a message would fail the session, and with it all other calls.
        if (num_bytes := request.ByteSize()) > MAX_ADD_BYTES:
            message = f"the request, encoded for the engine, may have at most {MAX_ADD_BYTES} bytes; it has {num_bytes}"
            raise InvalidRequestError(message, limit=MAX_ADD_BYTES, value=num_bytes)
        call = EngineCall(self, request, listener, first_index)
        if self.choose(request) is None and self.grace_left_s() <= 0:
            raise self._pool.none_left()
        self.send(call)
        return call

    def send(self, call: EngineCall, error: TriptychError | None = None) -> None:
        """Send a call to an engine that it was not sent to yet, as soon as there is one.

        Args:
            error: why the last engine did not do.
        """
        connection = self.choose(call.request, call.tried)
        if connection is not None:
            call.send_to(connection)
            return
        call.waiting = task = asyncio.create_task(self._send_later(call, error), name="a request that waits for an engine")
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)

    async def _send_later(self, call: EngineCall, error: TriptychError | None) -> None:
        try:
            await self._pool.until(lambda: self.choose(call.request, call.tried) is not None, self.grace_left_s(call.tried))
            connection = self.choose(call.request, call.tried)
            if connection is not None and call.is_live:
                call.send_to(connection)
            else:
                call.fail(error or self._pool.none_left())
        except TriptychError as failure:
            call.fail(failure)
        except asyncio.CancelledError:
            call.fail(error or self._pool.none_left())
            raise

    def grace_left_s(self, tried: Set[str] = frozenset(), error: TriptychError | None = None) -> float:
        """How long a call that finds no engine should wait for one, as `Pool.grace_left_s`; 0 once this router is closed."""
        return 0.0 if self._is_closed else self._pool.grace_left_s(tried, error)

    async def embed(self, request: engine_pb2.EngineServiceEmbedRequest, request_id: str) -> engine_pb2.EngineServiceEmbedResponse:
        """Vectors of prompts, from the engine that `choose` gives the first one, or from another engine if that does not take them.

        Raises:
            TriptychError: no engine took them, or one failed.
        """
        tried: set[str] = set()
        failure: TriptychError | None = None
        while True:
            connection = self.choose(request.requests[0], tried)
            if connection is None:
                if (left_s := self.grace_left_s(tried, failure)) <= 0:
                    raise failure or self._pool.none_left()
                await self._pool.until(lambda: self.choose(request.requests[0], tried) is not None, left_s)
                continue
            tried.add(connection.instance_id)
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

    def choose(self, request: engine_pb2.EngineRequest, tried: Set[str] = frozenset()) -> EngineConnection | None:
        """The engine for a request; None when there is none.

        Args:
            tried: instances that are not chosen.
        """

        def suits(engine: EngineConnection) -> bool:
            return engine.instance_id not in tried and self._pool.may_try_another(tried)

        least = self._pool.least_loaded(suits)
        if least is None or not request.media:
            return least
        own = next(filter(suits, self._pool.ranked(request.media[0].key)), least)
        return least if own.is_doubtful or own.load > _MAX_STICKY_LOAD + 2 * least.load else own
