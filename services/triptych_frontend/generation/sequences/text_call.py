"""A call without media: one request to an engine, and a further one for each choice whose reasoning was ended."""

from __future__ import annotations

from collections.abc import Sequence

from triptych.v1 import engine_pb2

from triptych_frontend.engines.router import EngineRouter, Listener
from triptych_frontend.generation.sequences.continuation import after_reasoning, of_one


class TextCall:
    """The sequences of one call.

    Args:
        request: for all of them.
        listener: receives their outputs, as in `EngineRouter.start`.

    Raises:
        what `EngineRouter.start` raises.
    """

    def __init__(self, engines: EngineRouter, request: engine_pb2.EngineRequest, listener: Listener) -> None:
        self._engines = engines
        self._request = request
        self._listener = listener
        self._num_further = 0
        #: For each sequence, the call that carries it.
        self._calls = [engines.start(request, listener)] * (request.n or 1)

    def abort(self, index: int) -> None:
        """End one sequence in the engine. Its last output still arrives."""
        self._calls[index].abort(index)

    def go_on(self, index: int, token_ids: Sequence[int]) -> None:
        """See Sequences. Raises what `EngineRouter.start` raises."""
        request = after_reasoning(of_one(self._request, index), token_ids)
        self._num_further += 1
        request.request_id += f"-{self._num_further}"
        self._calls[index] = self._engines.start(request, self._listener, index)

    def close(self) -> None:
        """End all sequences, and stop listening. May be called twice."""
        for call in self._calls:
            call.close()
