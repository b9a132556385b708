"""The sequences of one request, wherever they are: each goes on at another engine if the one that it is at is lost, or drains.

An engine computes the same tokens behind the output of another one as the other would have (`EngineRequest.num_output_tokens`). So
a call keeps of each sequence what must be known to go on: the request and the output so far.
"""

from __future__ import annotations

import logging
from array import array
from collections import Counter
from collections.abc import Iterable

from triptych.errors import TriptychError
from triptych.v1 import engine_pb2
from triptych_common.cluster.router import Router

from triptych_frontend.engines.connection import EngineConnection
from triptych_frontend.engines.placement import Cause, Listener, Placement, Sequence
from triptych_frontend.engines.policy import Routing, demand_of

log = logging.getLogger(__name__)
#: A sequence that was at so many engines when they were lost, or hung, may be the reason. It goes nowhere else.
_MAX_LOSSES = 4
_INT64 = 1 << 64


class EngineCall:
    """One request and its sequences. Made by `EngineRouter.start`.

    Args:
        num_moved: counts the sequences that go on at another engine.
        first_index: what listener and caller call the first sequence.

    Raises:
        what `EngineRouter.start` raises.
    """

    def __init__(
        self,
        router: Router[EngineConnection],
        request: engine_pb2.EngineRequest,
        listener: Listener,
        routing: Routing,
        num_moved: Counter[Cause],
        first_index: int = 0,
    ) -> None:
        self._router, self._routing = router, routing
        self.listener = listener
        self.request = request
        self._num_moved = num_moved
        self._sequences = [Sequence(first_index + number) for number in range(request.n or 1)]
        self._first_index = first_index
        #: Of all sequences together.
        self._num_placements = 0
        self._place_all(set()).start()

    def abort(self, index: int) -> None:
        """End one sequence in the engine. Its last output still arrives."""
        sequence = self._sequences[index - self._first_index]
        sequence.is_aborted = True
        if sequence.placement is not None:
            sequence.placement.abort(sequence)

    def go_on(self, index: int, token_ids: Iterable[int]) -> None:
        """Continue a sequence that has ended, behind these output tokens, which end its reasoning. Raises as the constructor."""
        sequence = self._sequences[index - self._first_index]
        sequence.token_ids = array("I", token_ids)
        sequence.constraint_start = len(sequence.token_ids)
        sequence.is_aborted = False
        self.resume([index])

    def resume(self, indices: Iterable[int]) -> None:
        """Continue sequences that failed, behind their output so far, with `request` as it is now. Raises as the constructor."""
        for index in indices:
            self._place(self._sequences[index - self._first_index], set()).start()

    def close(self) -> None:
        """End all live sequences, and stop listening. May be called twice."""
        for sequence in self._sequences:
            if sequence.placement is not None:
                sequence.placement.close()

    def move(self, placement: Placement, error: TriptychError, tried: set[str], cause: Cause) -> bool:
        live = placement.live_sequences
        if any(one.num_losses > _MAX_LOSSES for one in live):
            return False
        if len(live) == len(self._sequences) and not any(one.has_output for one in live):
            moved = [self._place_all(tried)]
        else:
            # The engine that has computed the prompt has its KV cache.
            source = placement.instance_id if cause == "prefilled" else ""
            moved = [self._place(sequence, tried, source) for sequence in live]
        try:
            for one in moved:
                one.start(error)
        except TriptychError as failure:
            for one in moved:
                one.close()
            for sequence in live:
                sequence.placement = placement
            if failure is not error:
                log.warning("a sequence cannot go on at another engine: %s", failure)
            return False
        self._num_moved[cause] += len(live)
        return True

    def _place_all(self, tried: set[str]) -> Placement:
        """All sequences at their beginning."""
        request = self.request
        if self._num_placements:
            # An engine that had the request before may still know its id.
            request = engine_pb2.EngineRequest()
            request.CopyFrom(self.request)
            request.request_id += f"-{self._num_placements}"
        self._num_placements += 1
        return self._placed(request, self._sequences, tried)

    def _place(self, sequence: Sequence, tried: set[str], kv_source: str = "") -> Placement:
        """The next placement of one sequence.

        Args:
            kv_source: instance id of an engine that has computed it so far.
        """
        sequence.num_placements += 1
        request = of_one(self.request, sequence.index - self._first_index)
        request.request_id += f".{sequence.num_placements}"
        request.prompt_token_ids.extend(sequence.token_ids)
        request.num_output_tokens = len(sequence.token_ids)
        request.kv_source = kv_source
        if sequence.constraint_start is not None and request.HasField("constraint"):
            request.constraint_start = sequence.constraint_start
        if sequence.has_output:
            request.sampling.ClearField("prompt_logprobs")
        return self._placed(request, [sequence], tried)

    def _placed(self, request: engine_pb2.EngineRequest, sequences: list[Sequence], tried: set[str]) -> Placement:
        placement = Placement(self, self._router, request, sequences, demand_of(request, self._routing), set(tried))
        for sequence in sequences:
            sequence.placement = placement
            if sequence.is_aborted:
                placement.abort(sequence)
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
