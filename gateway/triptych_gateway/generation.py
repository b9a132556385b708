"""Answering one generation request: calls of the frontend, one per prompt, become one stream of events or one JSON object."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing

from triptych_common.errors import InternalError
from triptych_common.pb import common_pb2, generation_pb2

from triptych_gateway.formats.common import AnswerFormat, Choice
from triptych_gateway.metrics import GenerationMeter
from triptych_gateway.sse import DONE

Response = generation_pb2.ChatResponse | generation_pb2.CompleteResponse
#: Responses of all prompts together that wait to be written.
_MAX_WAITING_RESPONSES = 64


class Generation:
    """One request's answer.

    Args:
        calls: the responses for each prompt. Nothing is sent before they are read.
        num_choices: choices per prompt. Choice i of prompt p has the index p * num_choices + i.
    """

    def __init__(
        self, calls: Sequence[AsyncIterator[Response]], num_choices: int, answer_format: AnswerFormat, meter: GenerationMeter
    ) -> None:
        self._calls = calls
        self._num_choices = num_choices
        self._format = answer_format
        self._meter = meter
        self._usage = common_pb2.Usage()

    async def events(self, include_usage: bool) -> AsyncGenerator[bytes, None]:
        """The server-sent events; the first item comes with the first response, when the request is known to be accepted."""
        total = len(self._calls) * self._num_choices
        num_finished, opening = 0, self._format.opening(total)
        async with aclosing(merge(self._calls)) as responses:
            async for prompt, response in responses:
                events = opening
                opening = b""
                for delta in response.choices:
                    events += self._format.delta(prompt * self._num_choices + delta.index, delta)
                    num_finished += delta.finish_reason != common_pb2.FINISH_REASON_UNSPECIFIED
                self._count(response)
                if events:
                    self._meter.event()
                    yield events
        if num_finished != total:
            raise InternalError(f"the frontend finished {num_finished} of {total} choices")
        self._meter.finished(self._usage)
        yield self._format.usage(self._usage) + DONE if include_usage else DONE

    async def whole(self) -> bytes:
        """The JSON of the whole answer."""
        choices = [Choice() for _ in range(len(self._calls) * self._num_choices)]
        async with aclosing(merge(self._calls)) as responses:
            async for prompt, response in responses:
                for delta in response.choices:
                    choices[prompt * self._num_choices + delta.index].add(delta)
                self._count(response)
        num_finished = sum(choice.finish_reason is not None for choice in choices)
        if num_finished != len(choices):
            raise InternalError(f"the frontend finished {num_finished} of {len(choices)} choices")
        self._meter.finished(self._usage)
        return self._format.whole(choices, self._usage)

    def _count(self, response: Response) -> None:
        if response.HasField("usage"):
            self._usage.prompt_tokens += response.usage.prompt_tokens
            self._usage.completion_tokens += response.usage.completion_tokens
            self._usage.cached_tokens += response.usage.cached_tokens


async def merge(calls: Sequence[AsyncIterator[Response]]) -> AsyncGenerator[tuple[int, Response], None]:
    """The responses of all calls as they come, each with its call's number. The first error ends all of them."""
    if len(calls) == 1:
        async with aclosing(calls[0]) as responses:  # type: ignore[type-var]
            async for response in responses:
                yield 0, response
        return
    queue: asyncio.Queue[tuple[int, Response] | Exception | None] = asyncio.Queue(_MAX_WAITING_RESPONSES)

    async def read(number: int) -> None:
        try:
            async with aclosing(calls[number]) as responses:  # type: ignore[type-var]
                async for response in responses:
                    await queue.put((number, response))
            await queue.put(None)
        except Exception as error:
            await queue.put(error)

    readers = [asyncio.create_task(read(number)) for number in range(len(calls))]
    try:
        num_open = len(calls)
        while num_open:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                num_open -= 1
            else:
                yield item
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
