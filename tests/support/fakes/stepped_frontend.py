"""A frontend whose steps a test controls. Each step sends something to all calls in one message, as the real frontend does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
from triptych.v1 import common_pb2, generation_pb2

from support.fakes.frontend import STOP, Delta, FakeFrontend


class SteppedFrontend(FakeFrontend):
    """Serves one session at a time."""

    def __init__(self) -> None:
        super().__init__()
        #: Numbers of the live calls, and the messages that started them.
        self.live: list[int] = []
        self.messages: list[generation_pb2.GenerationServiceSessionRequest] = []
        self._steps: asyncio.Queue[generation_pb2.GenerationServiceSessionResponse] = asyncio.Queue()

    async def Session(
        self, request_iterator: AsyncIterator[generation_pb2.GenerationServiceSessionRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[generation_pb2.GenerationServiceSessionResponse]:
        reader = asyncio.create_task(self._read(request_iterator))
        try:
            yield generation_pb2.GenerationServiceSessionResponse(instance=self.instance)
            while True:
                yield await self._steps.get()
        finally:
            reader.cancel()

    async def _read(self, requests: AsyncIterator[generation_pb2.GenerationServiceSessionRequest]) -> None:
        async for message in requests:
            self.messages.append(message)
            self.live += [call.number for call in message.start]

    def say(self, text: str) -> None:
        """Send one more piece of text to each call."""
        self._send([generation_pb2.GenerationCallResponse(number=number, choices=[Delta(text=text)]) for number in self.live])

    def finish(self) -> None:
        """End each call."""
        choices, usage = [Delta(finish_reason=STOP)], common_pb2.Usage(prompt_tokens=1)
        self._send([generation_pb2.GenerationCallResponse(number=number, choices=choices, usage=usage) for number in self.live])
        self.live = []

    def _send(self, responses: list[generation_pb2.GenerationCallResponse]) -> None:
        self._steps.put_nowait(generation_pb2.GenerationServiceSessionResponse(responses=responses))
