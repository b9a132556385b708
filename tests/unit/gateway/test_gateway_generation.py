"""Merging the calls of several prompts, and ending work that nobody waits for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st
from triptych_common.errors import QueueFullError, ServiceUnavailableError
from triptych_common.pb import generation_pb2
from triptych_gateway.errors import ClientDisconnectedError
from triptych_gateway.generation import merge
from triptych_gateway.lifecycle import until_disconnect


class Call:
    """Yields responses that carry these numbers, then raises the error, if there is one."""

    def __init__(self, numbers: list[int], error: Exception | None = None, is_endless: bool = False) -> None:
        self._numbers = numbers
        self._error = error
        self._is_endless = is_endless
        self.is_closed = False

    async def responses(self) -> AsyncGenerator[generation_pb2.CompleteResponse, None]:
        try:
            for number in self._numbers:
                await asyncio.sleep(0)
                yield generation_pb2.CompleteResponse(model=str(number))
            if self._error:
                raise self._error
            if self._is_endless:
                await asyncio.Event().wait()
        finally:
            self.is_closed = True


@given(st.lists(st.lists(st.integers(0, 9), max_size=100), min_size=1, max_size=6))
def test_merge_loses_nothing_and_keeps_each_calls_order(numbers: list[list[int]]) -> None:
    async def run() -> list[list[int]]:
        merged: list[list[int]] = [[] for _ in numbers]
        async with aclosing(merge([Call(of_call).responses() for of_call in numbers])) as responses:
            async for call, response in responses:
                merged[call].append(int(response.model))
        return merged

    assert asyncio.run(run()) == numbers


async def test_first_error_closes_all_calls() -> None:
    calls = [Call([1], is_endless=True), Call([], QueueFullError("full")), Call(list(range(500)))]

    async def read_all() -> None:
        async with aclosing(merge([call.responses() for call in calls])) as responses:
            async for _ in responses:
                pass

    with pytest.raises(QueueFullError):
        await read_all()
    assert all(call.is_closed for call in calls)


@pytest.mark.parametrize("num_calls", [1, 3])
async def test_closing_early_closes_all_calls(num_calls: int) -> None:
    calls = [Call(list(range(500))) for _ in range(num_calls)]
    async with aclosing(merge([call.responses() for call in calls])) as responses:
        seen: list[int] = []
        while len(set(seen)) < num_calls:
            seen.append((await anext(responses))[0])
    assert all(call.is_closed for call in calls)


async def connected() -> dict[str, str]:
    await asyncio.Event().wait()
    raise AssertionError


async def disconnected() -> dict[str, str]:
    return {"type": "http.disconnect"}


class Work:
    """Runs until it is cancelled."""

    was_cancelled = False

    async def run(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.was_cancelled = True


async def test_work_that_ends_by_itself() -> None:
    async def work() -> int:
        return 5

    assert await until_disconnect(work(), connected, asyncio.Future()) == 5  # type: ignore[arg-type]


async def test_client_gone() -> None:
    work = Work()
    with pytest.raises(ClientDisconnectedError):
        await until_disconnect(work.run(), disconnected, asyncio.Future())  # type: ignore[arg-type]
    assert work.was_cancelled


async def test_gateway_stopping() -> None:
    work, stopping = Work(), asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(until_disconnect(work.run(), connected, stopping))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    stopping.set_result(None)
    with pytest.raises(ServiceUnavailableError, match="stopping"):
        await waiting
    assert work.was_cancelled


async def test_cancelled_from_outside() -> None:
    work = Work()
    waiting = asyncio.create_task(until_disconnect(work.run(), connected, asyncio.Future()))  # type: ignore[arg-type]
    for _ in range(3):
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert work.was_cancelled
