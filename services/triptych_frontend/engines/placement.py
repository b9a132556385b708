"""A request at one engine: one sequence of a call, or all of them at its beginning."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Protocol

from triptych.errors import InternalError, ServiceUnavailableError, TriptychError
from triptych.status import from_request_error
from triptych.v1 import common_pb2, engine_pb2
from triptych_common.cluster.router import RETRYABLE, Demand, Router

from triptych_frontend.engines.connection import EngineConnection

#: A request may have been the reason why its engine was lost. One that ran for longer, in seconds, was not: it may try all again.
_PROBATION_S = 5.0


class Owner(Protocol):
    """The call whose sequences are placed."""

    def on_output(self, index: int, output: engine_pb2.SequenceOutput) -> None:
        """The engine sent an output for the sequence of this index."""
        ...

    def on_error(self, index: int, error: TriptychError) -> None:
        """The engine refused or failed this sequence. It is not placed any more."""
        ...

    def move(self, placement: Placement, error: TriptychError, tried: set[str]) -> bool:
        """Place the live sequences of a placement at another engine. Returns False if there is none, and none is expected."""
        ...


class Placement:
    """Some sequences of a call at an engine.

    Args:
        request: has as many sequences as there are indices.
        indices: what the owner calls them.
        tried: instances of engines that had these sequences.
    """

    def __init__(
        self,
        owner: Owner,
        router: Router[EngineConnection],
        request: engine_pb2.EngineRequest,
        indices: Sequence[int],
        tried: set[str],
    ) -> None:
        self._owner, self._router = owner, router
        self.request = request
        self.tried = tried
        self._indices = indices
        #: Positions in `indices` of the sequences that have not ended.
        self._live = set(range(len(indices)))
        #: Those that are to end as soon as an engine has the request.
        self._aborted: set[int] = set()
        self._connection: EngineConnection | None = None
        #: On its way to an engine.
        self._placing: asyncio.Task[None] | None = None
        self._has_output = False
        self._start_s = 0.0
        #: What the engine's breaker gave for this request, and whether it was told of a failure.
        self._generation, self._has_reported = 0, False

    @property
    def is_live(self) -> bool:
        """Whether anybody still waits for a sequence."""
        return bool(self._live)

    @property
    def live_indices(self) -> list[int]:
        """The owner's indices of the sequences that have not ended."""
        return [self._indices[position] for position in sorted(self._live)]

    def start(self, error: TriptychError | None = None) -> None:
        """Hand the request to an engine, at once or as soon as one is there.

        Args:
            error: why the last engine did not do.

        Raises:
            ServiceUnavailableError: no engine is available, and none is expected.
            InvalidRequestError: the request is too large for one message.
            InternalError: a live request has the same request id.
        """
        demand = demand_of(self.request)
        engine = self._router.choose(demand, self.tried)
        if engine is not None:
            self.tried.add(engine.instance_id)
            self._hand_to(engine)
            return
        self._placing = self._router.place_again(self, demand, error)
        if self._placing is None:
            raise error or self._router.none_left()

    async def send_to(self, service: EngineConnection) -> None:
        self._hand_to(service)

    def _hand_to(self, engine: EngineConnection) -> None:
        engine.send(self)
        self._connection, self._start_s = engine, time.monotonic()
        self._generation, self._has_reported = engine.breaker.begin(), False
        for position in self._live & self._aborted:
            engine.abort_sequence(self.request.request_id, position)

    def abort(self, index: int) -> None:
        """End one sequence in the engine. Its last output still arrives."""
        position = self._indices.index(index)
        if position not in self._live:
            return
        self._aborted.add(position)
        if self._connection is None:
            return
        if self._live == {position}:
            self._connection.abort(self.request.request_id)
        else:
            self._connection.abort_sequence(self.request.request_id, position)

    def close(self) -> None:
        """End all live sequences, and stop listening. May be called twice."""
        if self._live and self._connection is not None:
            self._leave(self._connection)
        self._live.clear()
        if self._placing is not None:
            self._placing.cancel()

    # Called by the connection, and by the router.

    def put(self, output: engine_pb2.SequenceOutput) -> None:
        position = output.index
        if position not in self._live:
            return
        if output.finish_reason == common_pb2.FINISH_REASON_ERROR:
            error = from_request_error(output.error)
            self._report(error)
            if not isinstance(error, RETRYABLE) or not self._move(error, self._tried_now(), aborts=len(self._live) > 1):
                self._end(position)
                self._owner.on_error(self._indices[position], error)
            return
        if output.finish_reason == common_pb2.FINISH_REASON_ABORT and position not in self._aborted and self._is_going_away:
            error = ServiceUnavailableError("the engine has stopped; try again", retry_after_s=1.0)
            if self._move(error, self._tried_now(), aborts=len(self._live) > 1):
                return
        if not self._has_output:
            self._has_output = True
            self._report(None)
        if output.finish_reason:
            self._end(position)
        self._owner.on_output(self._indices[position], output)

    def lost(self, error: TriptychError) -> None:
        if self._connection is not None:
            self._connection.breaker.ended(self._generation)
            if not self._move(error, self._tried_now()):
                self.fail(error)

    def fail(self, error: TriptychError) -> None:
        live = self.live_indices
        self._live.clear()
        for index in live:
            self._owner.on_error(index, error)

    def hand_over(self, error: ServiceUnavailableError, *, has_failed: bool) -> None:
        """Go on at another engine, if there is one now.

        Args:
            error: why this one does not do.
            has_failed: it must not get these sequences again.
        """
        engine = self._connection
        if engine is None or not self._live:
            return
        tried = self._tried_now() | {engine.instance_id}
        if self._router.choose(demand_of(self.request), tried) is not None:
            self._move(error, tried if has_failed else tried - {engine.instance_id})

    @property
    def _is_going_away(self) -> bool:
        return self._connection is not None and self._connection.is_going_away

    def _tried_now(self) -> set[str]:
        engine = self._connection
        if engine is None or time.monotonic() - self._start_s < _PROBATION_S:
            return self.tried
        return self.tried & {engine.instance_id}

    def _move(self, error: TriptychError, tried: set[str], *, aborts: bool = True) -> bool:
        """Let the owner place the live sequences elsewhere.

        Args:
            aborts: the engine may still work on one of them.
        """
        engine = self._connection
        if engine is None or not self._live or not self._owner.move(self, error, tried):
            return False
        self._leave(engine, aborts=aborts)
        self._live.clear()
        return True

    def _leave(self, engine: EngineConnection, *, aborts: bool = True) -> None:
        engine.forget(self.request.request_id)
        if aborts:
            engine.abort(self.request.request_id)
        engine.breaker.ended(self._generation)

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

    def _end(self, position: int) -> None:
        self._live.discard(position)
        if not self._live and self._connection is not None:
            self._connection.forget(self.request.request_id)


def demand_of(request: engine_pb2.EngineRequest) -> Demand[EngineConnection]:
    """Requests with the same media prefer the same engine, which may hold the embeddings and the KV cache."""
    key = request.media[0].key if request.media else None
    if not request.num_output_tokens:
        return Demand(key=key)
    return Demand(lambda engine: engine.model.capabilities.continuation, key)
