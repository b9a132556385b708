"""GenerationService.Session, implemented with a fake's ChatStream and CompleteStream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
from triptych.v1 import common_pb2, generation_pb2, generation_pb2_grpc
from triptych_common.rpc.status import to_request_error
from triptych_common.telemetry.logs import request_id_var

CallResponse = generation_pb2.GenerationCallResponse


class SessionOverCalls(generation_pb2_grpc.GenerationServiceServicer):
    """Runs each call of a session as a separate stream, with one response per message."""

    #: Contexts of the calls, in the order of arrival.
    contexts: list[common_pb2.CallContext]
    instance = common_pb2.Instance(id="fake", service="frontend", state=common_pb2.SERVER_STATE_SERVING)

    async def Session(
        self, request_iterator: AsyncIterator[generation_pb2.GenerationServiceSessionRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[generation_pb2.GenerationServiceSessionResponse]:
        responses: asyncio.Queue[CallResponse | None] = asyncio.Queue()
        running: dict[int, asyncio.Task[None]] = {}

        async def run(call: generation_pb2.GenerationCall) -> None:
            request_id_var.set(call.request_id)
            try:
                stream: AsyncIterator[generation_pb2.ChatStreamResponse | generation_pb2.CompleteStreamResponse]
                if call.HasField("chat"):
                    chat = generation_pb2.ChatStreamRequest(chat=call.chat, output_mode=call.output_mode)
                    stream = self.ChatStream(chat, context)
                else:
                    complete = generation_pb2.CompleteStreamRequest(complete=call.complete, output_mode=call.output_mode)
                    stream = self.CompleteStream(complete, context)
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
                    self.contexts.append(call.context)
                    running[call.number] = asyncio.create_task(run(call))
                for number in message.cancel:
                    if number in running:
                        running[number].cancel()
            responses.put_nowait(None)

        reader = asyncio.create_task(read())
        try:
            yield generation_pb2.GenerationServiceSessionResponse(instance=self.instance)
            while (response := await responses.get()) is not None:
                yield generation_pb2.GenerationServiceSessionResponse(responses=[response])
        finally:
            reader.cancel()
            for task in running.values():
                task.cancel()
            await asyncio.gather(*running.values(), return_exceptions=True)
