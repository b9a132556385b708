"""GenerationService.Session on top of a fake's Chat and Complete."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
from triptych_common.pb import generation_pb2, generation_pb2_grpc
from triptych_common.rpc.status import to_request_error
from triptych_common.telemetry.logs import request_id_var

CallResponse = generation_pb2.GenerationCallResponse


class SessionOverCalls(generation_pb2_grpc.GenerationServiceServicer):
    """Runs each call of a session as the stream that it would be alone; one response per message."""

    async def Session(
        self, request_iterator: AsyncIterator[generation_pb2.GenerationServiceSessionRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[generation_pb2.GenerationServiceSessionResponse]:
        responses: asyncio.Queue[CallResponse | None] = asyncio.Queue()
        running: dict[int, asyncio.Task[None]] = {}

        async def run(call: generation_pb2.GenerationCall) -> None:
            request_id_var.set(call.request_id)
            try:
                stream = self.Chat(call.chat, context) if call.HasField("chat") else self.Complete(call.complete, context)
                async for response in stream:
                    own = CallResponse(number=call.number, choices=response.choices, media=getattr(response, "media", ()))
                    for name in ("usage", "timings"):
                        if response.HasField(name):
                            getattr(own, name).CopyFrom(getattr(response, name))
                    responses.put_nowait(own)
            except Exception as error:
                responses.put_nowait(CallResponse(number=call.number, error=to_request_error(error)))

        async def read() -> None:
            async for message in request_iterator:
                for call in message.start:
                    running[call.number] = asyncio.create_task(run(call))
                for number in message.cancel:
                    if number in running:
                        running[number].cancel()
            responses.put_nowait(None)

        reader = asyncio.create_task(read())
        try:
            while (response := await responses.get()) is not None:
                yield generation_pb2.GenerationServiceSessionResponse(responses=[response])
        finally:
            reader.cancel()
            for task in running.values():
                task.cancel()
            await asyncio.gather(*running.values(), return_exceptions=True)
