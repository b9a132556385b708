"""The sequences of one request, wherever they are: each goes on at another engine if the one that it is at is lost, or drains.

An engine computes the same tokens behind the output of another one as the other would have (`EngineRequest.num_output_tokens`). So
a call keeps of each sequence what must be known to go on: the request and the output so far.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from triptych.errors import TriptychError
from triptych.v1 import engine_pb2
from triptych_common.cluster.router import Router

from triptych_frontend.engines.connection import EngineConnection
from triptych_frontend.engines.placement import Placement

log = logging.getLogger(__name__)
_INT64 = 1 << 64


class Listener(Protocol):
    """Receives the results of a request's sequences. Its methods are called on the event loop, and must not raise."""

    def on_output(self, index: int, output: engine_pb2.SequenceOutput) -> None:
        """The engine sent an output for the sequence at this index. The output keeps its step's whole message in memory."""
        ...

    def on_error(self, index: int, error: TriptychError) -> None:
        """This sequence was refused or has failed, or its engine was lost and no other one can go on. It has ended."""
        ...


@dataclass(slots=True)
class _Sequence:
    #: Output tokens so far.
    token_ids: array[int] = field(default_factory=lambda: array("I"))
    #: The first output came, which has the log probabilities of the prompt.
    has_output: bool = False
    is_aborted: bool = False
    num_placements: int = 0
    #: Output tokens before the constraint, if that does not say itself where it begins.
    constraint_start: int | None = None
    placement: Placement | None = None


class EngineCall:
    """One request and its sequences. Made by `EngineRouter.start`.

    Args:
        first_index: what listener and caller call the first sequence.

    Raises:
        what `EngineRouter.start` raises.
    """

    def __init__(
        self, router: Router[EngineConnection], request: engine_pb2.EngineRequest, listener: Listener, first_index: int = 0
    ) -> None:
        self._router = router
        self._listener = listener
        self.request = request
        self._sequences = {first_index + number: _Sequence() for number in range(request.n or 1)}
        self._first_index = first_index
        self._place_all(set()).start()

    def abort(self, index: int) -> None:
        """End one sequence in the engine. Its last output still arrives."""
        sequence = self._sequences[index]
        sequence.is_aborted = True
        if sequence.placement is not None:
            sequence.placement.abort(index)

    def go_on(self, index: int, token_ids: Sequence[int]) -> None:
        """Continue a sequence that has ended, behind these output tokens, which end its reasoning. Raises as the constructor."""
        sequence = self._sequences[index]
        sequence.token_ids, sequence.constraint_start = array("I", token_ids), len(token_ids)
        sequence.is_aborted = False
        self.resume([index])

    def resume(self, indices: Iterable[int]) -> None:
        """Continue sequences that failed, behind their output so far, with `request` as it is now. Raises as the constructor."""
        for index in indices:
            self._place(index, set()).start()

    def close(self) -> None:
        """End all live sequences, and stop listening. May be called twice."""
        for sequence in self._sequences.values():
            if sequence.placement is not None:
                sequence.placement.close()

    # Called by the placements.

    def on_output(self, index: int, output: engine_pb2.SequenceOutput) -> None:
        sequence = self._sequences[index]
        sequence.has_output = True
        sequence.token_ids.extend(output.token_ids)
        self._listener.on_output(index, output)

    def on_error(self, index: int, error: TriptychError) -> None:
        self._listener.on_error(index, error)

    def move(self, placement: Placement, error: TriptychError, tried: set[str]) -> bool:
        live = placement.live_indices
        if len(live) == len(self._sequences) and not any(one.has_output for one in self._sequences.values()):
            moved = [self._place_all(tried)]
        else:
            moved = [self._place(index, tried) for index in live]
        try:
            for one in moved:
                one.start(error)
        except TriptychError as failure:
            for one in moved:
                one.close()
            for index in live:
                self._sequences[index].placement = placement
            if failure is not error:
                log.warning("a sequence cannot go on at another engine: %s", failure)
            return False
        return True

    def _place_all(self, tried: set[str]) -> Placement:
        placement = Placement(self, self._router, self.request, list(self._sequences), set(tried))
        for index, sequence in self._sequences.items():
            sequence.placement = placement
            if sequence.is_aborted:
                placement.abort(index)
        return placement

    def _place(self, index: int, tried: set[str]) -> Placement:
        """The next placement of one sequence."""
        sequence = self._sequences[index]
        sequence.num_placements += 1
        request = of_one(self.request, index - self._first_index)
        request.request_id += f"-{sequence.num_placements}"
        request.prompt_token_ids.extend(sequence.token_ids)
        request.num_output_tokens = len(sequence.token_ids)
        if sequence.constraint_start is not None and request.HasField("constraint"):
            request.constraint_start = sequence.constraint_start
        if sequence.has_output:
            request.sampling.ClearField("prompt_logprobs")
        placement = sequence.placement = Placement(self, self._router, request, [index], set(tried))
        if sequence.is_aborted:
            placement.abort(index)
        return placement


def of_one(request: engine_pb2.EngineRequest, number: int) -> engine_pb2.EngineRequest:
    """The request for one of its sequences, with the seed that the engine would give that sequence."""
    one = engine_pb2.EngineRequest()
    one.CopyFrom(request)
    one.request_id, one.n = f"{request.request_id}-{number}", 1
    if one.sampling.HasField("seed"):
        # After the largest seed it wraps around to the smallest.
        one.sampling.seed = (request.sampling.seed + number + _INT64 // 2) % _INT64 - _INT64 // 2
    return one
