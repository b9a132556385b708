"""From the step loop's thread to the streams of the event loop: each output goes to the stream that its request came in on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from triptych_engine.core import Load
from triptych_engine.scheduling.output import SequenceOutput

log = logging.getLogger(__name__)

#: What a stream gets of one step: step number, its requests' outputs, load.
StepOutputs = tuple[int, list[SequenceOutput], Load]


class Mailbox:
    """What waits for one stream, which alone takes. Bounded by what its live requests can produce: waiting steps are joined."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._pending: list[StepOutputs] = []
        self._changed = asyncio.Event()
        self._ended = False
        self._closed = False
        self._ends_when_idle = False
        self.request_ids: set[str] = set()  # live requests of this stream

    def expect(self, request_id: str) -> None:
        """Route a request's outputs here. Raises KeyError when the id is routed to some stream already."""
        self._outbox.route(request_id, self)
        self.request_ids.add(request_id)

    def put(self, step: int, outputs: list[SequenceOutput], load: Load) -> None:
        if self._closed:
            return
        self._pending.append((step, outputs, load))
        self._changed.set()

    async def take(self) -> StepOutputs | None:
        """Outputs of one step, or of several when the stream was slow; waits for some. None once the mailbox has ended."""
        while not self._pending:
            if self._ended or (self._ends_when_idle and not self.request_ids):
                return None
            self._changed.clear()
            await self._changed.wait()
        pending, self._pending = self._pending, []
        step, outputs, load = pending[-1]
        if len(pending) > 1:
            outputs = [output for _, of_step, _ in pending for output in of_step]
        return step, outputs, load

    def end(self) -> None:
        """Let `take` return None once what has arrived was taken."""
        self._ended = True
        self._changed.set()

    def end_when_idle(self) -> None:
        """Let `take` return None once no request of this stream is live."""
        self._ends_when_idle = True
        self._changed.set()

    def close(self) -> list[str]:
        """Take no more; returns the ids of requests that are still live.

        Their routes stay until their last outputs, so that nobody can use the ids meanwhile and get what is not theirs.
        """
        self._closed = True
        self._pending.clear()
        return sorted(self.request_ids)


class Outbox:
    """Routes by request id. All methods but `publish` are called on the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_load: Callable[[Load], None]) -> None:
        self._loop = loop
        self._on_load = on_load
        self._routes: dict[str, Mailbox] = {}  # request_id -> where its outputs go
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def num_live_requests(self) -> int:
        return len(self._routes)

    def publish(self, step: int, outputs: Sequence[SequenceOutput], load: Load) -> None:
        """Hand a step's outputs to the event loop; called on the step loop's thread. After the loop is closed they are dropped."""
        try:
            self._loop.call_soon_threadsafe(self._deliver, step, outputs, load)
        except RuntimeError:
            if not self._loop.is_closed():
                raise

    def route(self, request_id: str, mailbox: Mailbox) -> None:
        if request_id in self._routes:
            raise KeyError(request_id)
        self._routes[request_id] = mailbox
        self._idle.clear()

    def unroute(self, request_id: str) -> None:
        self._routes.pop(request_id, None)
        if not self._routes:
            self._idle.set()

    async def wait_idle(self) -> None:
        """Return once no request is live."""
        await self._idle.wait()

    def _deliver(self, step: int, outputs: Sequence[SequenceOutput], load: Load) -> None:
        by_mailbox: dict[Mailbox, list[SequenceOutput]] = {}
        for output in outputs:
            mailbox = self._routes.get(output.request_id)
            if mailbox is None:
                continue  # refused before it had a route
            by_mailbox.setdefault(mailbox, []).append(output)
            if output.finish_reason is not None:
                log.debug(
                    "%s after %d tokens",
                    output.finish_reason.value,
                    (output.usage or (0, 0, 0))[1],
                    extra={"request_id": output.request_id},
                )
                self.unroute(output.request_id)
                mailbox.request_ids.discard(output.request_id)
        for mailbox, own in by_mailbox.items():
            mailbox.put(step, own, load)
        self._on_load(load)
