"""A call without media: one request to an engine, and a further one for each choice whose reasoning was ended."""

from __future__ import annotations

from collections.abc import Sequence

from triptych.errors import TriptychError
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
        call = engines.start(request, listener)
        #: For each sequence, the call that carries it, and the index there.
        self._places = [(call, index) for index in range(request.n or 1)]

    def abort(self, index: int) -> None:
        """End one sequence in the engine. Its last output still arrives."""
        call, place = self._places[index]
        call.abort(place)

    def go_on(self, index: int, token_ids: Sequence[int]) -> None:
        """See Sequences. Raises what `EngineRouter.start` raises."""
        request = after_reasoning(of_one(self._request, index), token_ids)
        self._num_further += 1
        request.request_id += f"-{self._num_further}"
        self._places[index] = (self._engines.start(request, _OneSequence(self._listener, index)), 0)

    def close(self) -> None:
        """End all sequences, and stop listening. May be called twice."""
        for call, _ in self._places:
            call.close()


class _OneSequence:
    """Gives the outputs of a request of one sequence to the call's listener."""

    def __init__(self, listener: Listener, index: int) -> None:
        self._listener = listener
        self._index = index

    def on_output(self, index: int, output: engine_pb2.SequenceOutput) -> None:
        self._listener.on_output(self._index, output)

    def on_error(self, index: int, error: TriptychError) -> None:
        self._listener.on_error(self._index, error)
