"""One call from its first token to its last: turns the engine's outputs into text, and buffers the text until it is taken."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from triptych.errors import TriptychError
from triptych.v1 import common_pb2, engine_pb2, generation_pb2
from triptych_common.rpc.status import to_request_error

from triptych_frontend.errors import client_error
from triptych_frontend.generation.call_trace import CallTrace
from triptych_frontend.generation.choice import Choice
from triptych_frontend.generation.sequences.media_call import MediaCall
from triptych_frontend.generation.statistics import CallMeter
from triptych_frontend.media.item import AUDIO, IMAGE, VIDEO
from triptych_frontend.prompt.preprocess import Prompt

log = logging.getLogger(__name__)


class Sequences(Protocol):
    """A call's sequences in the engine: an EngineCall or a MediaCall."""

    def abort(self, index: int) -> None:
        """End the sequence of this choice. Its last output still arrives."""
        ...

    def go_on(self, index: int, token_ids: Sequence[int]) -> None:
        """Continue a choice whose sequence has ended, behind these output tokens, which end its reasoning. Raises TriptychError."""
        ...

    def close(self) -> None:
        """End all sequences, and stop listening. May be called twice."""
        ...


@dataclass(eq=False, repr=False)
class Generation:
    """The choices of one call, and their new output.

    It has no task of its own. The engine session fills it, and the client's stream or session empties it. Waiting output is merged
    into one response, so a slow reader only costs the memory of its own answer.

    Args:
        method: the name of the RPC, for the log.
        request_id: id of the client's request, for the log.
        on_news: called when output waits to be taken, and not again until it was taken.
        on_end: called once, when the last response was taken or the call was closed.
        meter: counts the call.
        num_best: send only so many of the choices, the likeliest, when all have ended. None sends all.
    """

    method: str
    request_id: str
    prompt: Prompt
    choices: Sequence[Choice]
    on_news: Callable[[], None]
    on_end: Callable[[], None]
    meter: CallMeter
    num_best: int | None = None
    #: The call's place in its trace; set once the call was started.
    trace: CallTrace | None = field(default=None, init=False)
    #: The error that ended the call; None while there is none.
    error: TriptychError | None = field(default=None, init=False)
    _num_running: int = field(init=False)
    _call: Sequences | None = field(default=None, init=False)
    _media: MediaCall | None = field(default=None, init=False)
    #: Indices of choices with outputs since the last `take`, in the order of the outputs.
    _fed: dict[int, None] = field(default_factory=dict, init=False)
    _is_announced: bool = field(default=False, init=False)
    _is_closed: bool = field(default=False, init=False)
    _start_s: float = field(default_factory=time.perf_counter, init=False)

    def __post_init__(self) -> None:
        self._num_running = len(self.choices)

    def attach(self, call: Sequences, media: MediaCall | None = None) -> None:
        """Set the call's sequences in the engine, and the source of its media reports."""
        self._call = call
        self._media = media

    def take(self) -> generation_pb2.GenerationCallResponse | None:
        """The new output since the last call; None if there is none. A response with usage or an error is the last one."""
        self._is_announced = False
        if self.num_best is None:
            deltas = [delta for index in self._fed for delta in self.choices[index].take()]
        else:
            deltas = [] if self._num_running else _best_deltas(self.choices, self.num_best)
        self._fed.clear()
        if self.error is not None:
            self.close()
            return generation_pb2.GenerationCallResponse(choices=deltas, error=to_request_error(self.error))
        if self._num_running:
            return generation_pb2.GenerationCallResponse(choices=deltas) if deltas else None
        self.close()
        usage, timings = _usage(self.prompt, self.choices), _timings(self.prompt, self.choices)
        media = self._media.reports(self.choices[0].last) if self._media is not None else ()
        return generation_pb2.GenerationCallResponse(choices=deltas, usage=usage, timings=timings, media=media)

    def close(self) -> None:
        """End the sequences that still run, and log the cost of the call. May be called twice."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._call is not None:
            self._call.close()
        self._count()
        self._end_trace()
        self.on_end()

    def abandon(self) -> None:
        """Free the place of a call that did not get to an engine. It has used nothing."""
        self._is_closed = True
        self.on_end()

    # Called with the engine's outputs, see engines.placement.Listener.

    def on_output(self, index: int, output: engine_pb2.SequenceOutput) -> None:
        try:
            self._feed(index, output)
        except Exception as error:
            self.on_error(index, client_error(error, log, self.request_id))

    def on_error(self, index: int, error: TriptychError) -> None:
        # One failed choice ends the call.
        self.error = self.error or error
        self._announce()

    def _feed(self, index: int, output: engine_pb2.SequenceOutput) -> None:
        choice = self.choices[index]
        had_stopped = choice.has_stopped
        if output.token_ids:
            self.meter.token(index)
        choice.feed(output)
        self._fed[index] = None
        is_finished = choice.is_finished
        if is_finished:
            self._num_running -= 1
        elif output.finish_reason and self._call is not None:
            self._call.go_on(index, choice.token_ids)
        elif choice.has_stopped and not had_stopped and self._call is not None:
            # The choice finishes with the engine's last output, at most one step later, which has cached tokens and timings.
            self._call.abort(index)
        # A reader that is woken for nothing after each token costs a final answer as much as a stream.
        if is_finished or not choice.is_final_only:
            self._announce()

    def _announce(self) -> None:
        if not self._is_announced:
            self._is_announced = True
            self.on_news()

    def _count(self) -> None:
        self.meter.used(_usage(self.prompt, self.choices))
        has_ended = any(choice.last is not None for choice in self.choices)
        if self.error is not None:
            end = outcome = self.error.reason or "UNKNOWN"
        elif self._num_running:
            end = outcome = "cancelled"
        else:
            names = [common_pb2.FinishReason.Name(choice.finish_reason) for choice in self.choices]
            ends = [name.removeprefix("FINISH_REASON_").lower() for name in names]
            end, outcome = ", ".join(sorted(set(ends))), ends[0]
        self.meter.ended(outcome, _timings(self.prompt, self.choices).queue_s if has_ended else None)
        log.info(
            "%s: %d prompt and %d output tokens, %s, %.1f ms",
            self.method,
            len(self.prompt.token_ids),
            sum(choice.num_tokens for choice in self.choices),
            end,
            (time.perf_counter() - self._start_s) * 1e3,
            extra={"request_id": self.request_id, "trace": self.trace and self.trace.context},
        )

    def _end_trace(self) -> None:
        if self.trace is not None and self.trace.is_recorded:
            ends = [choice.finish_reason for choice in self.choices if choice.is_finished]
            is_cancelled = self.error is None and self._num_running > 0
            self.trace.end(_usage(self.prompt, self.choices), ends, self.error, is_cancelled=is_cancelled)


def _best_deltas(choices: Sequence[Choice], num_best: int) -> list[generation_pb2.ChoiceDelta]:
    """The output of the choices with the highest mean log probability, best first. All choices have ended."""
    ranked = sorted(choices, key=lambda choice: choice.mean_logprob, reverse=True)[:num_best]
    deltas = []
    for index, choice in enumerate(ranked):
        for delta in choice.take():
            delta.index = index
            if index:
                delta.ClearField("prompt_logprobs")
            deltas.append(delta)
    return deltas


def _usage(prompt: Prompt, choices: Sequence[Choice]) -> common_pb2.Usage:
    first = choices[0].last
    usage = common_pb2.Usage(
        prompt_tokens=len(prompt.token_ids),
        completion_tokens=sum(choice.num_tokens for choice in choices),
        # The prompt counts once, and so do its cached tokens: further choices find the first choice's prefix in the cache. The
        # limit is for sequences that were sent to the engine again, which may also find output tokens in the cache.
        cached_tokens=min(first.usage.cached_tokens, len(prompt.token_ids)) if first is not None else 0,
        cached_media_tokens=first.usage.cached_media_tokens if first is not None else 0,
        reasoning_tokens=sum(choice.num_reasoning_tokens for choice in choices),
    )
    if prompt.media:
        usage.image_tokens, usage.audio_tokens, usage.video_tokens = (
            sum(item.expansion.num_tokens for item in prompt.media if item.modality == modality)
            for modality in (IMAGE, AUDIO, VIDEO)
        )
    return usage


def _timings(prompt: Prompt, choices: Sequence[Choice]) -> common_pb2.Timings:
    ended = [choice.last.timings for choice in choices if choice.last is not None]
    timings = common_pb2.Timings()
    timings.CopyFrom(max(ended, key=lambda timings: timings.queue_s + timings.prefill_s + timings.decode_s))
    timings.preprocess_s = prompt.preprocess_s
    return timings
