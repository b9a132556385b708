"""Many inputs in few calls: whose error it is when a call fails."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from triptych.errors import InvalidRequestError, ServiceUnavailableError, TriptychError
from triptych.offline.calls.batcher import Batcher


async def ask_all(error: TriptychError, bad: int) -> tuple[list[int | BaseException], int]:
    """The answers to ten inputs, where calls with `bad` fail; and the number of calls."""
    num_calls = 0

    async def send(inputs: Sequence[int]) -> Sequence[int]:
        nonlocal num_calls
        num_calls += 1
        if bad in inputs:
            raise error
        return inputs

    batcher: Batcher[int, int] = Batcher(send)
    answers = await asyncio.gather(*(batcher.ask(number) for number in range(10)), return_exceptions=True)
    return answers, num_calls


async def test_a_bad_input_fails_alone() -> None:
    error = InvalidRequestError("bad")
    answers, _ = await ask_all(error, 3)
    assert answers == [0, 1, 2, error, 4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("error", [ServiceUnavailableError("away")])
async def test_services_that_are_away_are_not_asked_for_each_input(error: TriptychError) -> None:
    """A call has waited for them already, and each further one would wait as long."""
    answers, num_calls = await ask_all(error, 3)
    assert answers == [error] * 10
    assert num_calls == 1
