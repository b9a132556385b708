"""The frontend calls of one HTTP request, and a mailbox for their responses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from triptych.errors import TriptychError
from triptych.status import from_request_error
from triptych.v1 import common_pb2, generation_pb2
from triptych_common.cluster.router import RETRYABLE

#: The contract's limit. The frontend replaces longer ids.
_MAX_REQUEST_ID_CHARS = 128
Request = generation_pb2.ChatRequest | generation_pb2.CompleteRequest
Response = generation_pb2.GenerationCallResponse


@dataclass
class MediaFile:
    """A file of a call, kept outside the request message. Small files are sent in the request, others are uploaded before it."""

    #: Its item in the request, which has no source until the file is sent.
    item: common_pb2.MediaItem
    content: bytes


@dataclass
class FrontendCall:
    """One Chat or Complete call."""

    request: Request
    request_id: str
    output_mode: generation_pb2.OutputMode = generation_pb2.OUTPUT_MODE_DELTA
    files: list[MediaFile] = field(default_factory=list)


def numbered(request_id: str, count: int) -> list[str]:
    """Ids of the calls of a request. Concurrent calls need different ones."""
    if count == 1:
        return [request_id]
    # The stem is cut, because the frontend would replace an id that is too long.
    stem = request_id[: _MAX_REQUEST_ID_CHARS - len(f"-{count}")]
    return [f"{stem}-{number}" for number in range(count)]


class Carrier(Protocol):
    """A connection that carries calls."""

    async def carry(self, calls: Calls) -> None: ...

    def cancel(self, number: int) -> None: ...


class Calls:
    """The frontend calls of one HTTP request, and a mailbox for their responses.

    Args:
        calls: kept until a frontend has answered, so that they can be sent to another one if the first is lost.
        context: whose calls they are.
        place_again: starts sending the calls to another frontend, given the error of the last one. None if there is no other.
        on_accepted: called once, when a frontend has answered or the calls are closed.
    """

    def __init__(
        self,
        calls: Sequence[FrontendCall],
        context: common_pb2.CallContext,
        place_again: Callable[[Calls, TriptychError], asyncio.Task[None] | None],
        on_accepted: Callable[[], None],
    ) -> None:
        self.calls: Sequence[FrontendCall] = calls
        self.context = context
        #: The model that all of them name.
        self.model = calls[0].request.model if calls else ""
        self.tried: set[str] = set()
        self._place_again = place_again
        self._placing: asyncio.Task[None] | None = None
        self._on_accepted = on_accepted
        self._carrier: Carrier | None = None
        #: number -> index of the call, for calls that have not ended
        self._live: dict[int, int] = {}
        #: index of the call -> response since the last `next`: one as received, or several merged
        self._waiting: dict[int, Response] = {}
        #: Indices whose message in `_waiting` is merged.
        self._merged: set[int] = set()
        self._error: TriptychError | None = None
        self._is_placed = False
        self._is_accepted = False
        self.is_live = True
        self._wake_up: asyncio.Future[None] | None = None

    async def send_to(self, service: Carrier) -> None:
        """See Placeable."""
        await service.carry(self)

    def sent(self, carrier: Carrier, numbers: Sequence[int]) -> None:
        """Note that a connection carries the calls, under these numbers."""
        self._carrier, self._is_placed = carrier, True
        self._live = {number: place for place, number in enumerate(numbers)}

    async def next(self) -> list[tuple[int, Response]]:
        """Wait for responses, and return those since the last call of this method, each with the index of its call.

        Empty when all calls have ended.

        Raises:
            TriptychError: a call failed or the frontend was lost. Waiting responses are returned before.
        """
        while not self._waiting:
            if self._error is not None:
                raise self._error
            if self._is_placed and not self._live:
                return []
            self._wake_up = asyncio.get_running_loop().create_future()
            await self._wake_up
        waiting, self._waiting = self._waiting, {}
        self._merged.clear()
        return list(waiting.items())

    def close(self) -> None:
        """Cancel the calls that have not ended. May be called twice."""
        self.is_live = False
        if self._placing is not None:
            self._placing.cancel()
        self._cancel_live()
        self._accepted()

    def put(self, number: int, response: Response) -> None:
        """Take a response that is not the last of its call. Called by the connection's reader."""
        place = self._live.get(number)
        if place is None:
            return
        if not self._is_accepted:
            self._accepted()
        if place in self._waiting:
            self._merge(place, response)
        else:
            # This response keeps the message of the whole step in memory, but only until the next step.
            self._waiting[place] = response
        self._wake()

    def put_last(self, number: int, response: Response) -> None:
        """Take the last response of a call, which has its usage or its error."""
        place = self._live.pop(number, None)
        if place is None:
            return
        if response.HasField("error"):
            error = from_request_error(response.error)
            if not response.choices and self._placed_again(error):
                return
        self._accepted()
        if response.choices or response.HasField("usage"):
            self._merge(place, response)
        if response.HasField("error"):
            self.fail(from_request_error(response.error))
        self._wake()

    def lost(self, error: TriptychError) -> None:
        """Handle the loss of the connection."""
        if not self._placed_again(error):
            self.fail(error)

    def fail(self, error: TriptychError) -> None:
        """End with an error. `next` raises it after the waiting responses."""
        self._error = self._error or error
        self.close()
        self._wake()

    def _placed_again(self, error: TriptychError) -> bool:
        """Send the calls to another frontend, if there is one and no frontend has answered yet."""
        if self._is_accepted or not self.is_live or not isinstance(error, RETRYABLE):
            return False
        self._cancel_live()
        self._is_placed = False
        self._placing = self._place_again(self, error)
        return self._placing is not None

    def _cancel_live(self) -> None:
        if self._carrier is not None:
            for number in self._live:
                self._carrier.cancel(number)
        self._live.clear()

    def _accepted(self) -> None:
        if not self._is_accepted:
            self._is_accepted = True
            self.calls = ()
            self._on_accepted()

    def _merge(self, place: int, response: Response) -> None:
        """Append to the waiting response, in a new message. A slow client then keeps only its own answer in memory."""
        if place not in self._merged:
            own, waiting = Response(), self._waiting.get(place)
            if waiting is not None:
                _append(own, waiting)
            self._waiting[place] = own
            self._merged.add(place)
        _append(self._waiting[place], response)

    def _wake(self) -> None:
        if self._wake_up is not None and not self._wake_up.done():
            self._wake_up.set_result(None)


def _append(into: Response, new: Response) -> None:
    """Append a response to an earlier one of the same call."""
    for delta in new.choices:
        last = next((choice for choice in reversed(into.choices) if choice.index == delta.index), None)
        if last is None or not _continues(last, delta):
            into.choices.append(delta)
            continue
        kind = delta.WhichOneof("delta")
        before = (last.text, last.reasoning, last.tool_call.arguments)
        last.MergeFrom(delta)
        if kind == "text":
            last.text = before[0] + delta.text
        elif kind == "reasoning":
            last.reasoning = before[1] + delta.reasoning
        elif kind == "tool_call":
            last.tool_call.arguments = before[2] + delta.tool_call.arguments
    if new.HasField("usage"):
        into.usage.CopyFrom(new.usage)
        into.timings.CopyFrom(new.timings)
    into.media.extend(new.media)


def _continues(last: generation_pb2.ChoiceDelta, delta: generation_pb2.ChoiceDelta) -> bool:
    """Whether a delta adds to the same text, reasoning or tool call as the one before it."""
    old, new = last.WhichOneof("delta"), delta.WhichOneof("delta")
    if new == "tool_call":
        return old == "tool_call" and last.tool_call.index == delta.tool_call.index
    return new is None or old is None or old == new
