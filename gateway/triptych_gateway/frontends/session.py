"""The gateway's side of `GenerationService.Session`: one stream to the frontend that carries the calls of all clients."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Sequence

import grpc
from triptych_common.pb import generation_pb2
from triptych_common.rpc.channels import MAX_MESSAGE_BYTES
from triptych_common.rpc.errors import InvalidRequestError, ServiceUnavailableError, TriptychError
from triptych_common.rpc.status import from_request_error

log = logging.getLogger(__name__)
Request = generation_pb2.ChatRequest | generation_pb2.CompleteRequest
Response = generation_pb2.GenerationCallResponse
_Stream = grpc.aio.StreamStreamCall[generation_pb2.GenerationServiceSessionRequest, generation_pb2.GenerationServiceSessionResponse]
#: Largest request, and most bytes of requests in one message: one that is too large would fail the stream, and so everybody.
_MAX_START_BYTES = MAX_MESSAGE_BYTES // 2


class Calls:
    """The calls of one HTTP request, and a mailbox for their responses."""

    def __init__(self, session: FrontendSession, numbers: Sequence[int]) -> None:
        self._session = session
        #: number -> place among the calls, of those that have not ended
        self._live = {number: place for place, number in enumerate(numbers)}
        #: place -> what came since the last `next`: a response as it came, or several that were merged
        self._waiting: dict[int, Response] = {}
        #: Places whose message in `_waiting` is merged.
        self._merged: set[int] = set()
        self._error: TriptychError | None = None
        self._wake_up: asyncio.Future[None] | None = None

    async def next(self) -> list[tuple[int, Response]]:
        """What came since the last time, each with its call's place; waits for some. Empty once all calls have ended.

        Raises:
            TriptychError: a call failed, or the frontend went away; after the responses that wait.
        """
        while not self._waiting:
            if self._error is not None:
                raise self._error
            if not self._live:
                return []
            self._wake_up = asyncio.get_running_loop().create_future()
            await self._wake_up
        waiting, self._waiting = self._waiting, {}
        self._merged.clear()
        return list(waiting.items())

    def close(self) -> None:
        """Cancel what has not ended. May be called twice."""
        for number in self._live:
            self._session.cancel(number)
        self._live.clear()

    def put(self, number: int, response: Response) -> None:
        """Take a response from the session's reader, of a call that goes on."""
        place = self._live.get(number)
        if place is None:
            return
        if place in self._waiting:
            self._merge(place, response)
        else:
            # It keeps the whole step's message in memory, with what all other calls got, but no longer than to the next step.
            self._waiting[place] = response
        self._wake()

    def put_last(self, number: int, response: Response) -> None:
        """Take a call's last response, with its usage or its error."""
        place = self._live.pop(number, None)
        if place is None:
            return
        if response.choices or response.HasField("usage"):
            self._merge(place, response)
        if response.HasField("error"):
            self.fail(from_request_error(response.error))
        self._wake()

    def _merge(self, place: int, response: Response) -> None:
        """Append to what waits, in a message of its own: a slow client costs the memory of its own answer and nothing more."""
        if place not in self._merged:
            own, waiting = Response(), self._waiting.get(place)
            if waiting is not None:
                _append(own, waiting)
            self._waiting[place] = own
            self._merged.add(place)
        _append(self._waiting[place], response)

    def fail(self, error: TriptychError) -> None:
        """End with an error, after the responses that wait."""
        self._error = self._error or error
        self.close()
        self._wake()

    def _wake(self) -> None:
        if self._wake_up is not None and not self._wake_up.done():
            self._wake_up.set_result(None)


def _append(into: Response, new: Response) -> None:
    """Append what is new in a call."""
    for delta in new.choices:
        own = next((choice for choice in into.choices if choice.index == delta.index), None)
        if own is None:
            into.choices.append(delta)
            continue
        text = own.text + delta.text
        own.MergeFrom(delta)
        own.text = text
    if new.HasField("usage"):
        into.usage.CopyFrom(new.usage)
        into.timings.CopyFrom(new.timings)
    into.media.extend(new.media)


class FrontendSession:
    """One stream, from its first call to its loss.

    Args:
        stream: just opened.
        address: the frontend's, for the log.
    """

    def __init__(self, stream: _Stream, address: str) -> None:
        self._stream = stream
        self._address = address
        self._numbers = itertools.count(1)
        #: number -> the calls that it is one of
        self._calls: dict[int, Calls] = {}
        self._starts: list[generation_pb2.GenerationCall] = []
        self._cancels: list[int] = []
        self._has_requests = asyncio.Event()
        self._tasks = [asyncio.create_task(self._read(), name="frontend session"), asyncio.create_task(self._send())]
        #: Whether calls can be started.
        self.is_open = True

    def start(self, requests: Sequence[Request], request_ids: Sequence[str]) -> Calls:
        """Hand over one call per request. What is started before the loop's next turn travels in one message.

        Raises:
            InvalidRequestError: a request is too large.
        """
        for request in requests:
            if (num_bytes := request.ByteSize()) > _MAX_START_BYTES:
                raise InvalidRequestError(
                    f"the request, encoded for the frontend, may have at most {_MAX_START_BYTES} bytes; it has {num_bytes}",
                    limit=_MAX_START_BYTES,
                    value=num_bytes,
                )
        numbers = list(itertools.islice(self._numbers, len(requests)))
        calls = Calls(self, numbers)
        self._calls.update(dict.fromkeys(numbers, calls))
        for number, request, request_id in zip(numbers, requests, request_ids, strict=True):
            if isinstance(request, generation_pb2.ChatRequest):
                call = generation_pb2.GenerationCall(number=number, request_id=request_id, chat=request)
            else:
                call = generation_pb2.GenerationCall(number=number, request_id=request_id, complete=request)
            self._starts.append(call)
        self._has_requests.set()
        return calls

    def cancel(self, number: int) -> None:
        """Ask for nothing more of a call."""
        if self._calls.pop(number, None) is not None:
            self._cancels.append(number)
            self._has_requests.set()

    async def close(self) -> None:
        """Cancel everything."""
        self.is_open = False
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _read(self) -> None:
        """Hand out responses until the stream is lost; then nothing is left waiting."""
        # Whatever ended the stream is no single call's fault.
        error = ServiceUnavailableError("the model's frontend is away; try again")
        try:
            while isinstance(message := await self._stream.read(), generation_pb2.GenerationServiceSessionResponse):
                for response in message.responses:
                    self._dispatch(response)
        except grpc.aio.AioRpcError as lost:
            log.warning("lost the session with the frontend at %s: %s %s", self._address, lost.code().name, lost.details())
        finally:
            self.is_open = False
            self._stream.cancel()
            self._tasks[1].cancel()
            for calls in set(self._calls.values()):
                calls.fail(error)
            self._calls.clear()

    def _dispatch(self, response: Response) -> None:
        number = response.number
        if response.HasField("usage") or response.HasField("error"):
            if calls := self._calls.pop(number, None):
                calls.put_last(number, response)
        elif calls := self._calls.get(number):
            calls.put(number, response)

    async def _send(self) -> None:
        """Write what was asked for since the last message, until the stream is lost; the reader sees the same loss."""
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while True:
                await self._has_requests.wait()
                self._has_requests.clear()
                while self._starts or self._cancels:
                    message = generation_pb2.GenerationServiceSessionRequest(start=self._next_starts())
                    if not self._starts:  # a cancellation must not overtake its own call
                        message.cancel.extend(self._cancels)
                        self._cancels = []
                    await self._stream.write(message)

    def _next_starts(self) -> list[generation_pb2.GenerationCall]:
        num_bytes, num_calls = 0, 0
        for call in self._starts:
            num_bytes += call.ByteSize()
            if num_calls and num_bytes > _MAX_START_BYTES:
                break
            num_calls += 1
        starts, self._starts = self._starts[:num_calls], self._starts[num_calls:]
        return starts
