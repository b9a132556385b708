"""A connection whose calls share one long-lived stream. What starts and ends in the same moment is sent in one message."""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Coroutine
from typing import Any, ClassVar, Generic, TypeVar

import grpc
from google.protobuf.message import Message
from triptych.errors import InvalidRequestError, TriptychError

from triptych_common.cluster.connection import Carried, Connection
from triptych_common.rpc.channels import MAX_MESSAGE_BYTES
from triptych_common.rpc.security.tls import Tls

log = logging.getLogger(__name__)
#: Longest wait for the first message of a new stream, in which the service describes itself, in seconds.
HANDSHAKE_TIMEOUT_S = 30.0
Call = TypeVar("Call", bound=Carried)
Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)


class SessionConnection(Connection, Generic[Call, Request, Response]):
    """The session with the service at one address.

    Args:
        kind: see Connection.
        request, response: the classes of the messages.
    """

    #: Largest start, and most bytes of starts in one message. A larger message would fail the stream, and with it all calls.
    max_start_bytes: ClassVar[int] = MAX_MESSAGE_BYTES // 2

    def __init__(self, kind: str, address: str, tls: Tls | None, request: type[Request], response: type[Response]) -> None:
        super().__init__(kind, address, tls)
        self._request, self._response = request, response
        #: Id of a call -> the call.
        self.carried: dict[Any, Call] = {}
        self._starts: list[Message] = []
        #: What ends calls, since the last message.
        self._ends = request()
        self._has_requests = asyncio.Event()

    @abstractmethod
    def open(self) -> grpc.aio.StreamStreamCall[Request, Response]:
        """Open the stream."""

    @abstractmethod
    def greeted(self, first: Response) -> None:
        """The service sent its first message: check it, and call `connected`."""

    @abstractmethod
    def received(self, response: Response) -> None:
        """The service sent a further message."""

    @abstractmethod
    def add_starts(self, message: Request, starts: list[Any]) -> None:
        """Put starts of calls into a message."""

    @abstractmethod
    def loss(self) -> TriptychError:
        """The error of the calls that the connection carried when it was lost."""

    def beside(self) -> list[Coroutine[Any, Any, None]]:
        """Work to run while the stream is open."""
        return []

    def check_size(self, start: Message) -> None:
        """Raise InvalidRequestError if a start is too large."""
        if (num_bytes := start.ByteSize()) > self.max_start_bytes:
            message = f"the request, encoded for the {self.kind}, may have at most {self.max_start_bytes} bytes; it has {num_bytes}"
            raise InvalidRequestError(message, limit=self.max_start_bytes, value=num_bytes)

    def start(self, call_id: object, call: Call, start: Message) -> None:
        """Carry a call. The ids of live calls differ."""
        self.carried[call_id] = call
        self._starts.append(start)
        self._has_requests.set()

    def ending(self) -> Request:
        """The message in which the caller notes what ends."""
        self._has_requests.set()
        return self._ends

    async def serve(self) -> str:
        session = self.open()
        tasks: list[asyncio.Task[None]] = []
        try:
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                first = await session.read()
            if not isinstance(first, self._response):  # grpc.aio.EOF
                return "it ended the session at once"
            self.greeted(first)
            tasks = [asyncio.create_task(work) for work in (self._send(session), *self.beside())]
            while isinstance(response := await session.read(), self._response):
                self.received(response)
            return "it ended the session"
        finally:
            session.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def disconnected(self) -> None:
        self._starts.clear()
        self._ends = self._request()
        lost, self.carried = dict.fromkeys(self.carried.values()), {}
        if lost:
            log.warning("%d calls were at the %s at %s", len(lost), self.kind, self.address)
        self.tell_lost(lost, self.loss())

    async def _send(self, session: grpc.aio.StreamStreamCall[Request, Response]) -> None:
        """Write all starts and ends since the last message, until cancelled or the stream is lost."""
        while True:
            await self._has_requests.wait()
            self._has_requests.clear()
            while self._starts or self._ends.ByteSize():
                starts, message = self._next_starts(), self._request()
                if not self._starts:  # an end must not overtake its own start
                    message, self._ends = self._ends, message
                self.add_starts(message, starts)
                try:
                    await session.write(message)
                except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    return  # the reader also sees this loss, and informs the calls

    def _next_starts(self) -> list[Message]:
        num_bytes, num_starts = 0, 0
        for start in self._starts:
            num_bytes += start.ByteSize()
            if num_starts and num_bytes > self.max_start_bytes:
                break
            num_starts += 1
        starts, self._starts = self._starts[:num_starts], self._starts[num_starts:]
        return starts
