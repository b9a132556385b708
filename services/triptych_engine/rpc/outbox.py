"""Passes outputs from the step loop's thread to the streams on the event loop. An output goes to the stream of its request.

Each message costs engine, frontend and gateway about a millisecond of a core, whatever is in it, and on a CPU the model wants all
cores. So the outputs of steps that are shorter than the stream interval share messages. First tokens and ends do not wait.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from triptych_common.telemetry.span import Span
from triptych_common.telemetry.tracing import OFF, Tracer

from triptych_engine.load import Load
from triptych_engine.rpc.sequence_trace import end_sequence
from triptych_engine.scheduling.output import SequenceOutput
from triptych_engine.scheduling.statistics import RequestStatistics

log = logging.getLogger(__name__)

#: What a stream gets at once, from one step or several: number of the last step, the outputs of the stream's requests, load.
StepOutputs = tuple[int, list["Addressed"], Load]


@dataclass(frozen=True, slots=True)
class Route:
    """The mailbox for the outputs of a sequence, and the client's request id and index of it."""

    mailbox: Mailbox
    request_id: str
    index: int
    #: The span of the sequence; None if it is not traced.
    span: Span | None = None


#: An output and its route.
Addressed = tuple[Route, SequenceOutput]


class Mailbox:
    """Pending outputs for one stream, the only reader. They are bounded by what the stream's live requests can produce."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._pending: list[StepOutputs] = []
        self._changed = asyncio.Event()
        self._ended = False
        self._closed = False
        self._ends_when_idle = False
        self._is_silent = False  # since the last beat
        #: Whether the stream's client must send its new requests elsewhere.
        self.is_going_away = False
        #: Whether the model's description has changed since the stream's client was told it.
        self.has_new_model = False
        self.request_ids: set[str] = set()  # live sequences of this stream, by the engine's own ids

    def expect(self, request_id: str, sequence_ids: Sequence[str], spans: Sequence[Span] = ()) -> None:
        """Route the outputs of a request's sequences to this mailbox. Raises KeyError if the request id already has a route.

        Args:
            spans: one per sequence, or none.
        """
        self._outbox.route(request_id, sequence_ids, self, spans)
        self.request_ids.update(sequence_ids)

    def put(self, step: int, outputs: list[Addressed], load: Load) -> None:
        if self._closed:
            return
        self._pending.append((step, outputs, load))
        self._is_silent = False
        self._changed.set()

    async def take(self) -> StepOutputs | None:
        """Wait for outputs: those of one step, or of several if they were held or the stream was slow; one of each sequence.

        Returns None once the mailbox has ended.
        """
        while not self._pending:
            if self._ended or (self._ends_when_idle and not self.request_ids):
                return None
            self._changed.clear()
            await self._changed.wait()
        pending, self._pending = self._pending, []
        step, outputs, load = pending[-1]
        if len(pending) > 1:
            outputs = _joined(of_step for _, of_step, _ in pending)
        return step, outputs, load

    def end(self) -> None:
        """Make `take` return None after all pending outputs were taken."""
        self._ended = True
        self._changed.set()

    def end_when_idle(self) -> None:
        """Make `take` return None once no request of this stream is live."""
        self._ends_when_idle = True
        self._changed.set()

    def beat(self, load: Load) -> None:
        """Tell a stream with live requests that the engine is there, if nothing was told since the last call of this method."""
        if self.request_ids and self._is_silent and not self._pending:
            self.put(0, [], load)
        self._is_silent = True

    def notice(self, load: Load) -> None:
        """Tell the stream's client the load, unless outputs are about to."""
        if not self._pending:
            self.put(0, [], load)

    def tell_model(self, load: Load) -> None:
        """Tell the stream's client the model's description again."""
        self.has_new_model = True
        self.put(0, [], load)

    def go_away(self, load: Load) -> None:
        """Tell the stream's client to send new requests elsewhere, and end once no request of the stream is live."""
        self.is_going_away = True
        self.put(0, [], load)
        self.end_when_idle()

    def close(self) -> list[str]:
        """Drop pending and future outputs; returns the engine's ids of sequences that are still live.

        Their routes stay until their last outputs. So no other request can take the ids before that and get these outputs.
        """
        self._closed = True
        self._pending.clear()
        return sorted(self.request_ids)


def _joined(steps: Iterable[list[Addressed]]) -> list[Addressed]:
    """One output of each sequence, in the order of the first ones."""
    of_route: dict[int, Addressed] = {}  # routes are compared by their identity
    for outputs in steps:
        for route, output in outputs:
            if (before := of_route.get(id(route))) is not None:
                output.follow(before[1])
            of_route[id(route)] = route, output
    return list(of_route.values())


class Outbox:
    """Routes outputs by request id. All methods except `publish` are called on the event loop.

    Args:
        stream_interval_s: outputs wait until the last ones were delivered this long ago, and then for the end of a step, but at
            most for another interval.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_load: Callable[[Load], None], tracer: Tracer = OFF, stream_interval_s: float = 0.0
    ) -> None:
        self._loop = loop
        self._tracer = tracer
        self._stream_interval_s = stream_interval_s
        self._held: deque[tuple[int, Sequence[SequenceOutput], Load]] = deque()  # both threads change it
        self._delivered_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._on_load = on_load
        self.statistics = RequestStatistics()
        self._routes: dict[str, Route] = {}  # by the engine's id of a sequence
        self._sequences: dict[str, list[str]] = {}  # request id -> its live sequences, by the engine's ids
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def num_live_requests(self) -> int:
        return len(self._routes)

    def publish(self, step: int, outputs: Sequence[SequenceOutput], load: Load) -> None:
        """Pass a step's outputs to the event loop; called on the step loop's thread. Drops them after the event loop is closed."""
        self._held.append((step, outputs, load))
        if self._can_wait(outputs):
            return
        try:
            self._loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:
            if not self._loop.is_closed():
                raise

    def _can_wait(self, outputs: Sequence[SequenceOutput]) -> bool:
        """Whether no stream is waiting for one of them. The timer is set if the last ones were delivered so recently."""
        if not outputs or time.monotonic() >= self._delivered_s + self._stream_interval_s:
            return False
        return all(output.finish_reason is None and not output.is_first for output in outputs)

    def route(self, request_id: str, sequence_ids: Sequence[str], mailbox: Mailbox, spans: Sequence[Span] = ()) -> None:
        if request_id in self._sequences:
            raise KeyError(request_id)
        self._sequences[request_id] = list(sequence_ids)
        places = zip_longest(sequence_ids, spans)
        self._routes.update((one, Route(mailbox, request_id, index, span)) for index, (one, span) in enumerate(places))
        self._idle.clear()

    def unroute(self, sequence_id: str) -> None:
        route = self._routes.pop(sequence_id, None)
        if route is None:
            return
        live = self._sequences[route.request_id]
        live.remove(sequence_id)
        if not live:
            del self._sequences[route.request_id]
        if not self._routes:
            self._idle.set()

    def sequences_of(self, request_ids: Iterable[str]) -> list[str]:
        """The engine's ids of the live sequences of requests; unknown ids are ignored."""
        return [sequence for request_id in request_ids for sequence in self._sequences.get(request_id, ())]

    async def wait_idle(self) -> None:
        """Return once no request is live."""
        await self._idle.wait()

    def _deliver(self) -> None:
        if not self._held:
            return  # another call has delivered them
        if self._stream_interval_s:
            self._set_timer()
        while self._held:
            step, outputs, load = self._held.popleft()
            self._route(step, outputs, load)
        self._on_load(load)

    def _set_timer(self) -> None:
        """Deliver what will be held until then, if a step takes so long that nobody else does."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(2 * self._stream_interval_s, self._deliver)
        self._delivered_s = time.monotonic()

    def _route(self, step: int, outputs: Sequence[SequenceOutput], load: Load) -> None:
        by_mailbox: dict[Mailbox, list[Addressed]] = {}
        for output in outputs:
            route = self._routes.get(output.request_id)
            if route is None:
                continue  # refused before it had a route
            by_mailbox.setdefault(route.mailbox, []).append((route, output))
            if output.finish_reason is not None:
                log.debug(
                    "%s after %d tokens",
                    output.finish_reason.value,
                    (output.usage or (0, 0, 0))[1],
                    extra={"request_id": output.request_id, "trace": route.span and route.span.context},
                )
                self.statistics.ended(output)
                if route.span is not None:
                    end_sequence(self._tracer, route.span, output)
                self.unroute(output.request_id)
                route.mailbox.request_ids.discard(output.request_id)
        for mailbox, own in by_mailbox.items():
            mailbox.put(step, own, load)
