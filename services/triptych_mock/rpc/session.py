"""GenerationService.Session: many calls on one stream, as the gateway makes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial

from triptych.errors import InvalidRequestError
from triptych.mock.v1 import mock_pb2
from triptych.v1 import common_pb2, generation_pb2
from triptych_common.rpc.status import to_request_error

from triptych_mock.play import Player, play
from triptych_mock.rpc.seen import CallLog, media_bytes
from triptych_mock.script import add_unknown_field

Response = generation_pb2.GenerationServiceSessionResponse
CallResponse = generation_pb2.GenerationCallResponse
_METHOD = "/triptych.v1.GenerationService/Session"
#: Responses that wait for a slow reader; then the calls wait.
_MAX_QUEUED = 256


class MockSession:
    """The calls of one session."""

    def __init__(self, player: Player, log: CallLog) -> None:
        self._player = player
        self._log = log
        self._queue: asyncio.Queue[CallResponse | BaseException | None] = asyncio.Queue(_MAX_QUEUED)
        self._calls: dict[int, asyncio.Task[None]] = {}

    async def run(
        self, requests: AsyncIterator[generation_pb2.GenerationServiceSessionRequest], instance: common_pb2.Instance
    ) -> AsyncIterator[Response]:
        """The responses of all calls, until the client has closed its side and all have ended."""
        yield Response(instance=instance)
        reader = asyncio.create_task(self._read(requests))
        try:
            while (item := await self._queue.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield Response(responses=[item])
        finally:
            tasks = [reader, *self._calls.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, requests: AsyncIterator[generation_pb2.GenerationServiceSessionRequest]) -> None:
        try:
            async for message in requests:
                for call in message.start:
                    if call.number in self._calls or call.WhichOneof("request") is None:
                        raise InvalidRequestError(f"call {call.number} is live already, or has no request", field="start.number")
                    task = self._calls[call.number] = asyncio.create_task(self._call(call))
                    task.add_done_callback(partial(self._forget, call.number))
                for number in message.cancel:
                    if number in self._calls:
                        self._calls[number].cancel()
        except InvalidRequestError as error:
            await self._queue.put(error)
            return
        await asyncio.gather(*self._calls.values(), return_exceptions=True)
        await self._queue.put(None)

    def _forget(self, number: int, task: asyncio.Task[None]) -> None:
        self._calls.pop(number, None)

    async def _call(self, call: generation_pb2.GenerationCall) -> None:
        record = mock_pb2.SeenCall(method=_METHOD, media_bytes=media_bytes(call))
        try:
            with self._log.begin(call.request_id, record) as seen:
                is_chat = call.HasField("chat")
                answer = self._player.chat(call.chat) if is_chat else self._player.complete(call.complete)
                is_final = call.output_mode == generation_pb2.OUTPUT_MODE_FINAL
                async for part in play(answer, is_final, seen.num_earlier):
                    response = CallResponse(
                        number=call.number, choices=part.choices, usage=part.usage, timings=part.timings, media=part.media
                    )
                    if answer.script.unknown_field:
                        add_unknown_field(response)
                    await self._queue.put(response)
                    seen.sent(0.0)
        except Exception as error:
            await self._queue.put(CallResponse(number=call.number, error=to_request_error(error)))
