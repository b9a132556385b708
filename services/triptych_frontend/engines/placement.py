"""A request at one engine: one sequence of a call, or all of them at its beginning."""

from __future__ import annotations

import asyncio
import math
import time
from array import array
from dataclasses import dataclass, field
from typing import Literal, Protocol

from triptych.errors import InternalError, ModelNotFoundError, ServiceUnavailableError, TriptychError
from triptych.status import from_request_error
from triptych.v1 import common_pb2, engine_pb2
from triptych_common.cluster.router import RETRYABLE, Demand, Router

from triptych_frontend.engines.connection import EngineConnection
from triptych_frontend.engines.policy import PromptCost, has_room

#: A request may have been the reason why its engine was lost. One that had output for longer, in seconds, was not: it may try all
#: again.
_PROBATION_S = 5.0
#: Why sequences leave an engine: it was lost, it drains, it hangs, it took none of them, or it was to compute their prompt alone.
Cause = Literal["lost", "drained", "stalled", "refused", "prefilled"]
#: Where no engine that decodes has room, those with a computed prompt look again after so many tokens.
_LOOK_AGAIN_TOKENS = 16


class Listener(Protocol):
    """Receives the results of a request's sequences. Its methods are called on the event loop, and must not raise."""

    def on_output(self, index: int, output: engine_pb2.SequenceOutput) -> None:
        """The engine sent an output for the sequence at this index. The output keeps its step's whole message in memory."""
        ...

    def on_error(self, index: int, error: TriptychError) -> None:
        """This sequence was refused or has failed, or its engine was lost and no other one can go on. It has ended."""
        ...


@dataclass(eq=False, slots=True)
class Sequence:
    """What must be known of a sequence to go on with it at another engine, beside the request."""

    #: What the listener calls it.
    index: int
    #: Output tokens so far.
    token_ids: array[int] = field(default_factory=lambda: array("I"))
    #: The first output came, which has the log probabilities of the prompt.
    has_output: bool = False
    is_aborted: bool = False
    num_placements: int = 0
    #: Engines that were lost, or hung, while they had it.
    num_losses: int = 0
    #: Output tokens before the constraint, if that does not say itself where it begins.
    constraint_start: int | None = None
    #: Prompt tokens that the engine which computed the prompt for others had cached; None: there is no such engine.
    cached_tokens: int | None = None
    placement: Placement | None = None

    def count_cached(self, output: engine_pb2.SequenceOutput) -> None:
        """Blocks that came from another engine were cached at the last one, but computed for this sequence."""
        if not output.finish_reason:
            self.cached_tokens = output.usage.cached_tokens
        elif self.cached_tokens is not None:
            output.usage.cached_tokens = min(self.cached_tokens, output.usage.cached_tokens)


class Owner(Protocol):
    """The call whose sequences are placed."""

    listener: Listener

    def move(self, placement: Placement, error: TriptychError, tried: set[str], cause: Cause) -> bool:
        """Place the live sequences of a placement at another engine. Returns False if there is none, and none is expected."""
        ...


class Placement:
    """Some sequences of a call at an engine.

    Args:
        request: for these sequences.
        demand: what it asks of an engine.
        tried: instances of engines that had these sequences.
    """

    def __init__(
        self,
        owner: Owner,
        router: Router[EngineConnection],
        request: engine_pb2.EngineRequest,
        sequences: list[Sequence],
        demand: Demand[EngineConnection],
        tried: set[str],
    ) -> None:
        self._owner, self._router, self._listener = owner, router, owner.listener
        self.request = request
        self.tried = tried
        self._sequences = sequences
        #: Positions in it of those that have not ended.
        self._live = set(range(len(sequences)))
        #: Those that are to end as soon as an engine has the request.
        self._aborted: set[int] = set()
        self._connection: EngineConnection | None = None
        #: On its way to an engine.
        self._placing: asyncio.Task[None] | None = None
        self._has_output = False
        #: Outputs so far, and after how many to look for an engine that decodes.
        self._num_outputs, self._next_look = 0, 1.0
        #: When the first output came.
        self._output_s = 0.0
        #: What the engine's breaker gave for this request, and whether it was told of a failure.
        self._generation, self._has_reported = 0, False
        #: Tokens that the engine has to compute before the first output.
        self._num_pending = 0
        self._demand = demand

    @property
    def instance_id(self) -> str:
        """Of the engine that has it; empty for none."""
        return "" if self._connection is None else self._connection.instance_id

    @property
    def is_live(self) -> bool:
        """Whether anybody still waits for a sequence."""
        return bool(self._live)

    @property
    def live_sequences(self) -> list[Sequence]:
        """Those that have not ended."""
        return [self._sequences[position] for position in sorted(self._live)]

    def start(self, error: TriptychError | None = None) -> None:
        """Hand the request to an engine, at once or as soon as one is there.

        Args:
            error: why the last engine did not do.

        Raises:
            ServiceUnavailableError: no engine is available, and none is expected.
            InvalidRequestError: the request is too large for one message.
            InternalError: a live request has the same request id.
        """
        engine = self._router.choose(self._demand, self.tried)
        if engine is not None:
            self.tried.add(engine.instance_id)
            self._hand_to(engine)
            return
        self._placing = self._router.place_again(self, self._demand, error)
        if self._placing is None:
            raise error or self._router.none_left()

    async def send_to(self, service: EngineConnection) -> None:
        self._hand_to(service)

    def _hand_to(self, engine: EngineConnection) -> None:
        engine.send(self)
        self._connection = engine
        self._generation, self._has_reported = engine.breaker.begin(), False
        if isinstance(cost := self._demand.pick, PromptCost):
            self._num_pending = cost.sent_to(engine)
            engine.num_pending_tokens += self._num_pending
        for position in self._live & self._aborted:
            engine.abort_sequence(self.request.request_id, position)

    def abort(self, sequence: Sequence) -> None:
        """End one sequence in the engine. Its last output still arrives."""
        position = self._sequences.index(sequence)
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
            if error.field == "lora":  # clients name the adapter with the model
                error.field = "model"
            self._report(error)
            aborts = len(self._live) > 1
            may_move = isinstance(error, (*RETRYABLE, ModelNotFoundError))  # another engine may have the adapter
            if not may_move or not self._move(error, self._tried_now(), "refused", aborts=aborts):
                self._end(position)
                self._listener.on_error(self._sequences[position].index, error)
            return
        if output.finish_reason == common_pb2.FINISH_REASON_ABORT and position not in self._aborted and self._is_going_away:
            error = ServiceUnavailableError("the engine has stopped; try again", retry_after_s=1.0)
            if self._move(error, self._tried_now(), "drained", aborts=len(self._live) > 1):
                return
        if not self._has_output:
            self._has_output, self._output_s = True, time.monotonic()
            self._report(None)
            self._settle()
        if output.finish_reason:
            self._end(position)
        sequence = self._sequences[position]
        if (output.finish_reason or not sequence.has_output) and output.HasField("usage"):
            sequence.count_cached(output)
        sequence.has_output = True
        sequence.token_ids.extend(output.token_ids)
        self._listener.on_output(sequence.index, output)
        self._num_outputs += 1
        if self._num_outputs >= self._next_look:
            self._leave_prefill()

    def lost(self, error: TriptychError) -> None:
        if self._connection is not None:
            self._connection.breaker.ended(self._generation)
            self._count_loss()
            if not self._move(error, self._tried_now(), "lost"):
                self.fail(error)

    def fail(self, error: TriptychError) -> None:
        live = self.live_sequences
        self._live.clear()
        for sequence in live:
            self._listener.on_error(sequence.index, error)

    def hand_over(self, error: ServiceUnavailableError, *, has_failed: bool) -> None:
        """Go on at another engine, if there is one now that will take these sequences. Else they stay where they are.

        Args:
            error: why this one does not do.
            has_failed: it must not get these sequences again. Otherwise it would finish them itself.
        """
        engine = self._connection
        if engine is None or not self._live:
            return
        tried = self.tried | {engine.instance_id} if has_failed else self._tried_now() | {engine.instance_id}
        other = self._router.choose(self._demand, tried)
        if other is None or other.is_doubtful or not other.model.capabilities.continuation:
            return
        # What has no output yet may be refused where requests wait.
        if not has_failed and other.reported_load.num_waiting and not all(one.has_output for one in self.live_sequences):
            return
        if has_failed:
            self._count_loss()
            self._move(error, tried, "stalled")
        else:
            self._move(error, tried - {engine.instance_id}, "drained")

    def _leave_prefill(self) -> None:
        """Go on at an engine that decodes, if one has room. Else the sequences stay where they are."""
        engine, live = self._connection, self.live_sequences
        if engine is None or not engine.is_for_prompts:
            self._next_look = math.inf
            return
        if not live or not all(one.has_output and not one.is_aborted for one in live):
            return
        self._next_look = self._num_outputs + _LOOK_AGAIN_TOKENS * len(live)
        # The log probabilities of a prompt need all of it.
        if self.request.sampling.HasField("prompt_logprobs"):
            return
        num_tokens = len(self.request.prompt_token_ids) + max(len(one.token_ids) for one in live)

        def may_go_on(other: EngineConnection) -> bool:
            return self._demand.suits(other) and other.model.capabilities.continuation and has_room(other, num_tokens)

        if self._router.choose(Demand(may_go_on), self.tried) is not None:
            error = ServiceUnavailableError("the engine was to compute the prompt alone")
            # This one is well: it goes on if the other one does not.
            self._move(error, self.tried - {engine.instance_id}, "prefilled")

    def _count_loss(self) -> None:
        for sequence in self.live_sequences:
            sequence.num_losses += 1

    @property
    def _is_going_away(self) -> bool:
        return self._connection is not None and self._connection.is_going_away

    def _tried_now(self) -> set[str]:
        engine = self._connection
        if engine is None or not self._has_output or time.monotonic() - self._output_s < _PROBATION_S:
            return self.tried
        return self.tried & {engine.instance_id}

    def _move(self, error: TriptychError, tried: set[str], cause: Cause, *, aborts: bool = True) -> bool:
        """Let the owner place the live sequences elsewhere.

        Args:
            aborts: the engine may still work on one of them.
        """
        engine = self._connection
        if engine is None or not self._live or not self._owner.move(self, error, tried, cause):
            return False
        self._leave(engine, aborts=aborts)
        self._live.clear()
        return True

    def _leave(self, engine: EngineConnection, *, aborts: bool = True) -> None:
        self._settle()
        engine.forget(self.request.request_id)
        if aborts:
            engine.abort(self.request.request_id)
        engine.breaker.ended(self._generation)

    def _settle(self) -> None:
        """The engine has computed the prompt, or does not do so any more."""
        if self._connection is not None and self._num_pending:
            # 0 if the connection was lost since.
            self._connection.num_pending_tokens = max(0, self._connection.num_pending_tokens - self._num_pending)
        self._num_pending = 0

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
            self._settle()
            self._connection.forget(self.request.request_id)
