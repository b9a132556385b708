"""What a token costs in the frontend: Python calls and messages to the gateway.

A step brings one token to each of many sequences, and whatever is done per token in Python is done 10,000 times a second at 10,000
tokens per second. The numbers are exact: who adds a call changes a number here, and says why.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.builders.frontend import chat_request, frontend_bench, ids
from support.counting import assert_per_item, python_calls
from support.fakes.engine import says
from triptych.v1 import generation_pb2
from triptych_frontend.generation.call import Generation

FEW, MANY = 8, 64
NUM_CALLS = (1, FEW, MANY)
WARM_UP_STEPS = 3
NUM_STEPS = 5

# Per token: calls of our Python functions, and at most so many of built-in ones by those (an interpreter may do with fewer).
#: Out of the engine's message to its call, where its time is counted, through detokenizer and stop strings; then taken, and into
#: the gateway's message.
FRONTEND_CALLS, FRONTEND_BUILTINS = 20, 22


@asynccontextmanager
async def frontend_steps(num_calls: int, **options: Any) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """The real frontend between an engine and a gateway; yields what takes a step and reads its one message."""
    async with frontend_bench(says(ids("Hello there, how are you?" * 3))) as bench:
        stream = bench.generation.Session()
        assert (await stream.read()).instance.id
        await bench.engine.pause()
        request = chat_request(options=generation_pb2.GenerationOptions(**options))
        calls = [generation_pb2.GenerationCall(number=number, request_id=f"r{number}", chat=request) for number in range(num_calls)]
        await stream.write(generation_pb2.GenerationServiceSessionRequest(start=calls))
        await bench.engine.until(lambda: len(bench.engine.requests) == num_calls)

        async def step() -> None:
            await bench.engine.pause(after_steps=1)
            async with asyncio.timeout(10):
                message = await stream.read()
            assert sorted(response.number for response in message.responses) == list(range(num_calls))

        yield step
        stream.cancel()


@pytest.mark.parametrize("num_calls", NUM_CALLS)
async def test_the_frontend_sends_one_message_per_step(num_calls: int) -> None:
    async with frontend_steps(num_calls) as step:
        for _ in range(NUM_STEPS):
            await step()


async def test_the_frontend_takes_a_few_calls_per_token() -> None:
    async def step_of(num_calls: int) -> Counter[str]:
        async with frontend_steps(num_calls) as step:
            for _ in range(WARM_UP_STEPS):
                await step()
            with python_calls("triptych_frontend", "triptych_common.telemetry") as calls:
                await step()
        return calls

    assert_per_item(await step_of(FEW), FEW, await step_of(MANY), MANY, FRONTEND_CALLS, FRONTEND_BUILTINS)


async def test_a_final_answer_is_taken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its reader is not woken by each token."""
    num_takes, take = 0, Generation.take

    def counted(generation: Generation) -> generation_pb2.GenerationCallResponse | None:
        nonlocal num_takes
        num_takes += 1
        return take(generation)

    monkeypatch.setattr(Generation, "take", counted)
    async with frontend_bench(says(ids("Hello there, how are you?"))) as bench:
        response = await bench.generation.Chat(chat_request(options=generation_pb2.GenerationOptions(n=2)))
    assert response.choices[0].text == "Hello there, how are you?"
    # Once for each choice.
    assert num_takes <= 2
