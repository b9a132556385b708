"""Beam search: one-token requests to an engine, whose prefix cache makes them cheap."""

from __future__ import annotations

import time
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from heapq import nlargest

from triptych.errors import InternalError, TriptychError
from triptych.v1 import common_pb2, engine_pb2

from triptych_frontend.engines.call import EngineCall
from triptych_frontend.engines.placement import Listener
from triptych_frontend.engines.router import EngineRouter
from triptych_frontend.generation.preparation.options import BeamOptions


@dataclass(frozen=True)
class Beam:
    """One text of the search."""

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[engine_pb2.TokenLogprobs, ...] = ()
    #: Sum of the log probabilities.
    logprob: float = 0.0
    is_ended: bool = False

    def continued(self, entry: engine_pb2.TokenLogprobs, rank: int, num_top: int, is_ended: bool) -> Beam:
        """The text with the alternative of this rank, from 0, as its next token."""
        token_id, logprob = entry.top_token_ids[rank], entry.top_logprobs[rank]
        described = engine_pb2.TokenLogprobs(
            token_id=token_id,
            logprob=logprob,
            rank=rank + 1,
            top_token_ids=entry.top_token_ids[:num_top],
            top_logprobs=entry.top_logprobs[:num_top],
        )
        return Beam((*self.token_ids, token_id), (*self.logprobs, described), self.logprob + logprob, is_ended)

    def score(self, length_penalty: float) -> float:
        """What texts are ranked by."""
        return self.logprob / float(len(self.token_ids)) ** length_penalty


@dataclass(eq=False, repr=False)
class BeamSearch:
    """The search of one call. It gives the best texts to the listener, as the sequences 0, 1 ... that ended at once.

    Args:
        request: the prompt, with the parameters of the client.
        listener: gets the texts, or the first error.
        num_best: texts that are wanted.
        max_tokens: of each text.
        stop_token_ids: tokens that end a text.

    Raises:
        what `EngineRouter.start` raises.
    """

    engines: EngineRouter
    request: engine_pb2.EngineRequest
    listener: Listener
    options: BeamOptions
    num_best: int
    max_tokens: int
    stop_token_ids: Set[int]
    _live: list[Beam] = field(default_factory=lambda: [Beam()], init=False)
    _ended: list[Beam] = field(default_factory=list, init=False)
    _calls: list[EngineCall] = field(default_factory=list, init=False)
    #: Index of a live beam -> its continuations.
    _entries: dict[int, engine_pb2.TokenLogprobs] = field(default_factory=dict, init=False)
    _num_steps: int = field(default=0, init=False)
    _first: engine_pb2.SequenceOutput | None = field(default=None, init=False)
    _first_s: float = field(default=0.0, init=False)
    _is_closed: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._submit()

    def abort(self, index: int) -> None:
        """Nothing to do: a text that is sent has ended."""

    def go_on(self, index: int, token_ids: Sequence[int]) -> None:
        """Nothing to do: the reasoning of beams has no limit."""

    def close(self) -> None:
        """End all requests. May be called twice."""
        self._is_closed = True
        for call in self._calls:
            call.close()

    # Called with the engine's outputs for single beams, see engines.placement.Listener.

    def on_output(self, index: int, output: engine_pb2.SequenceOutput) -> None:
        if self._is_closed:
            return
        if self._first is None:
            self._first, self._first_s = output, time.perf_counter()
        if output.logprobs:
            self._entries[index] = output.logprobs[0]
        if not output.finish_reason:
            return
        if index not in self._entries:
            self.on_error(index, InternalError("the engine sent no log probabilities for a beam"))
        elif len(self._entries) == len(self._live):
            try:
                self._advance()
            except TriptychError as error:
                self.on_error(index, error)

    def on_error(self, index: int, error: TriptychError) -> None:
        if not self._is_closed:
            self.close()
            self.listener.on_error(0, error)

    def _submit(self) -> None:
        self._calls, self._entries = [], {}
        for index, beam in enumerate(self._live):
            request = engine_pb2.EngineRequest()
            request.CopyFrom(self.request)
            request.request_id += f"-{self._num_steps}-{index}"
            request.prompt_token_ids.extend(beam.token_ids)
            request.n = 1
            # The sampled token is not used, only the alternatives.
            sampling = common_pb2.SamplingParams(max_tokens=1, temperature=0, logprobs=2 * self.options.width)
            request.sampling.CopyFrom(sampling)
            self._calls.append(self.engines.start(request, self, index))
        self._num_steps += 1

    def _advance(self) -> None:
        """All beams have their continuations: keep the likeliest."""
        found, num_top = [], self.request.sampling.logprobs
        for index, beam in enumerate(self._live):
            entry = self._entries[index]
            for rank, token_id in enumerate(entry.top_token_ids):
                found.append(beam.continued(entry, rank, num_top, token_id in self.stop_token_ids))
        self._ended += [beam for beam in found if beam.is_ended]
        going_on = [beam for beam in found if not beam.is_ended]
        self._live = nlargest(self.options.width, going_on, key=lambda beam: beam.logprob)
        self._ended = self._best(self._ended)
        if self._num_steps == self.max_tokens or not self._live:
            self._finish([*self._ended, *self._live])
        elif self._is_decided():
            self._finish(self._ended)
        else:
            self._submit()

    def _best(self, beams: list[Beam]) -> list[Beam]:
        return nlargest(self.options.width, beams, key=lambda beam: beam.score(self.options.length_penalty))

    def _is_decided(self) -> bool:
        """Whether no text that goes on can still become one of the best. Its log probability only falls."""
        if len(self._ended) < self.num_best:
            return False
        penalty = self.options.length_penalty
        length = self.max_tokens if penalty > 0 else self._num_steps + 1
        best_possible = max(beam.logprob for beam in self._live) / float(length) ** penalty
        return self._ended[self.num_best - 1].score(penalty) >= best_possible

    def _finish(self, beams: list[Beam]) -> None:
        self._is_closed = True
        if self._first is None:
            return
        timings = common_pb2.Timings()
        timings.CopyFrom(self._first.timings)
        timings.decode_s = time.perf_counter() - self._first_s
        for index, beam in enumerate(self._best(beams)[: self.num_best]):
            output = engine_pb2.SequenceOutput(
                index=index, token_ids=beam.token_ids, logprobs=beam.logprobs, usage=self._first.usage, timings=timings
            )
            output.finish_reason = common_pb2.FINISH_REASON_STOP if beam.is_ended else common_pb2.FINISH_REASON_LENGTH
            if beam.is_ended:
                output.stop_token_id = beam.token_ids[-1]
            self.listener.on_output(index, output)
