"""A frontend that repeats the user's text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
from triptych.errors import InvalidRequestError
from triptych.v1 import common_pb2, generation_pb2, generation_pb2_grpc

from support.grpc_server import serving


class EchoFrontend(generation_pb2_grpc.GenerationServiceServicer):
    """Answers each turn with the text of the last message, word by word. Three texts are special.

    `refuse me` is refused, `for ever` never ends, and what begins with `think` is thought before it is said.
    """

    def __init__(self) -> None:
        self.requests: list[generation_pb2.ChatRequest] = []
        self.cancelled = asyncio.Event()

    async def ListModels(
        self, request: generation_pb2.ListModelsRequest, context: grpc.aio.ServicerContext
    ) -> generation_pb2.ListModelsResponse:
        return generation_pb2.ListModelsResponse(models=[common_pb2.ModelInfo(name="fake")])

    async def ChatStream(
        self, request: generation_pb2.ChatStreamRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[generation_pb2.ChatStreamResponse]:
        self.requests.append(request.chat)
        text = request.chat.messages[-1].content[-1].text
        if text == "refuse me":
            raise InvalidRequestError("messages[0] is not to my taste")
        try:
            for word in text.split() if text.startswith("think") else ():
                yield generation_pb2.ChatStreamResponse(choices=[generation_pb2.ChoiceDelta(reasoning=f"({word})")])
            for word in text.split():
                yield generation_pb2.ChatStreamResponse(choices=[generation_pb2.ChoiceDelta(text=f"{word} ")])
            if text == "for ever":
                await asyncio.Event().wait()
            usage = common_pb2.Usage(prompt_tokens=7, completion_tokens=11)
            yield generation_pb2.ChatStreamResponse(usage=usage, timings=common_pb2.Timings(decode_s=0.1))
        finally:
            # Cancellation can happen at any of the awaits above.
            if text == "for ever":
                self.cancelled.set()

    def turns(self, number: int) -> list[tuple[str, str]]:
        """Roles and texts of one request."""
        return [(message.role, message.content[0].text) for message in self.requests[number].messages]


@asynccontextmanager
async def echo_frontend() -> AsyncIterator[tuple[EchoFrontend, str]]:
    frontend = EchoFrontend()
    async with serving(lambda server: generation_pb2_grpc.add_GenerationServiceServicer_to_server(frontend, server)) as address:
        yield frontend, address
