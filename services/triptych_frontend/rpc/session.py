"""GenerationService.Session: many calls of one client on one stream. Responses that are due together share one message."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator

from triptych.errors import InvalidRequestError
from triptych.v1 import common_pb2, generation_pb2
from triptych_common.rpc.channels import MAX_MESSAGE_BYTES
from triptych_common.rpc.interceptors import usable_request_id
from triptych_common.rpc.security.roles import trusted_context
from triptych_common.rpc.status import to_request_error
from triptych_common.telemetry.logs import request_id_var

from triptych_frontend.errors import client_error
from triptych_frontend.generation.call import Generation
from triptych_frontend.generation.generator import Generator

log = logging.getLogger(__name__)

Request = generation_pb2.GenerationServiceSessionRequest
Response = generation_pb2.GenerationServiceSessionResponse
CallResponse = generation_pb2.GenerationCallResponse
#: Largest response, and most bytes of several responses in one message. Above the channel's limit the stream would fail.
_MAX_RESPONSE_BYTES = MAX_MESSAGE_BYTES - (1 << 20)
_MAX_MESSAGE_BYTES = MAX_MESSAGE_BYTES // 4


class GenerationSession:
    """The live calls of one stream, and their unsent responses.

    Args:
        instance: the identity of this frontend, for the first message.
    """

    def __init__(self, generator: Generator, instance: common_pb2.Instance) -> None:
        self._generator = generator
        self._instance = instance
        #: call number -> its preparation
        self._preparing: dict[int, asyncio.Task[None]] = {}
        #: call number -> its generation, from the end of the preparation to the last response
        self._live: dict[int, Generation] = {}
        #: Calls with new output, in order.
        self._with_news: dict[int, None] = {}
        #: Unsent responses: of calls that could not start, and those that did not fit into the last message.
        self._due: deque[CallResponse] = deque()
        self._changed = asyncio.Event()
        self._ends_when_idle = False
        #: Whether the client must start no more calls, and whether it was told so.
        self._is_going_away, self._has_said_so = False, False

    async def serve(self, requests: AsyncIterator[Request]) -> AsyncGenerator[Response, None]:
        """Read and answer until the client has ended its side and its last call has ended, or until `end_when_idle`.

        Raises:
            InvalidRequestError: the client used a call number twice at the same time, or sent a call without a request.
        """
        reader = asyncio.create_task(self._read(requests))
        try:
            yield Response(instance=self._instance)
            while True:
                await self._changed.wait()
                self._changed.clear()
                if self._is_going_away and not self._has_said_so:
                    self._has_said_so = True
                    yield Response(going_away=True)
                while message := self._next_message():
                    yield message
                if self._ends_when_idle and not (self._preparing or self._live):
                    break
            if reader.done():
                reader.result()
        finally:
            reader.cancel()
            self._close()

    def end_when_idle(self) -> None:
        """Make `serve` end once no call is live."""
        self._ends_when_idle = True
        self._changed.set()

    def go_away(self) -> None:
        """Tell the client to start no more calls, and make `serve` end once no call is live."""
        self._is_going_away = True
        self.end_when_idle()

    async def _read(self, requests: AsyncIterator[Request]) -> None:
        try:
            async for message in requests:
                for call in message.start:
                    self._start(call)
                for number in message.cancel:
                    self._cancel(number)
        except BaseException:
            self._close()
            raise
        finally:
            self.end_when_idle()

    def _start(self, call: generation_pb2.GenerationCall) -> None:
        if call.number in self._preparing or call.number in self._live:
            raise InvalidRequestError(f"call number {call.number} is in use", field="start.number", value=call.number)
        if call.WhichOneof("request") is None:
            raise InvalidRequestError(f"call {call.number} has no request: chat or complete", field="start.request")
        self._preparing[call.number] = asyncio.create_task(self._prepare(call))

    async def _prepare(self, call: generation_pb2.GenerationCall) -> None:
        number = call.number
        request = call.chat if call.WhichOneof("request") == "chat" else call.complete
        request_id_var.set(usable_request_id(call.request_id))
        try:
            self._live[number] = await self._generator.start(
                request,
                lambda: self._on_news(number),
                is_final_only=call.output_mode == generation_pb2.OUTPUT_MODE_FINAL,
                context=trusted_context(call.context),
            )
        except Exception as error:
            self._due.append(CallResponse(number=number, error=to_request_error(client_error(error, log))))
            self._changed.set()
        finally:
            if self._preparing.get(number) is asyncio.current_task():
                del self._preparing[number]

    def _on_news(self, number: int) -> None:
        self._with_news[number] = None
        self._changed.set()

    def _cancel(self, number: int) -> None:
        if task := self._preparing.pop(number, None):
            task.cancel()
        if generation := self._live.pop(number, None):
            generation.close()
        self._with_news.pop(number, None)
        # The client may reuse the number at once.
        self._due = deque(response for response in self._due if response.number != number)
        self._changed.set()

    def _next_message(self) -> Response | None:
        """The due responses, up to the size limit; None if there are none."""
        message, num_bytes = Response(), 0
        while response := self._next_due():
            num_bytes += response.ByteSize()
            if message.responses and num_bytes > _MAX_MESSAGE_BYTES:
                self._due.appendleft(response)
                break
            message.responses.append(response)
        return message if message.responses else None

    def _next_due(self) -> CallResponse | None:
        if self._due:
            return self._due.popleft()
        while self._with_news:
            number = next(iter(self._with_news))
            del self._with_news[number]
            if response := self._take(number):
                return response
        return None

    def _take(self, number: int) -> CallResponse | None:
        generation = self._live.get(number)
        response = generation.take() if generation is not None else None
        if generation is None or response is None:
            return None
        if response.ByteSize() > _MAX_RESPONSE_BYTES:
            generation.close()
            message = f"one response, including log probabilities and token ids, may have at most {_MAX_RESPONSE_BYTES} bytes"
            error = InvalidRequestError(message, limit=_MAX_RESPONSE_BYTES, value=response.ByteSize())
            response = CallResponse(error=to_request_error(error))
        if response.HasField("usage") or response.HasField("error"):
            del self._live[number]
        response.number = number
        return response

    def _close(self) -> None:
        for task in self._preparing.values():
            task.cancel()
        for generation in self._live.values():
            generation.close()
        self._preparing.clear()
        self._live.clear()
        self._with_news.clear()
