"""Ending work that nobody waits for."""

from __future__ import annotations

import asyncio

import pytest
from triptych.errors import ServiceUnavailableError
from triptych_gateway.generation.http import until_disconnect
from triptych_gateway.wire.errors import ClientDisconnectedError


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
