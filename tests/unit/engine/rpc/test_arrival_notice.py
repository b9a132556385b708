"""Frontends hear of each other's requests before the step ends that runs."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from support.builders.engine import a_scheduler
from triptych_common.arrivals import Arrivals
from triptych_engine.load import Load, StepProgress, load_of
from triptych_engine.rpc import arrival_notice
from triptych_engine.rpc.arrival_notice import ArrivalNotice
from triptych_engine.rpc.outbox import Mailbox, Outbox


class Engine:
    """Three sessions, and a load that says how often it was asked for."""

    def __init__(self) -> None:
        outbox = Outbox(asyncio.get_running_loop(), lambda load: None)
        self.sessions = [Mailbox(outbox) for _ in range(3)]
        self.num_loads = 0
        self._load = load_of(a_scheduler(), StepProgress(), Arrivals())
        self.notice = ArrivalNotice(self.sessions, self._next_load)

    def _next_load(self) -> Load:
        self.num_loads += 1
        return replace(self._load, num_waiting=self.num_loads)

    async def heard(self) -> list[int]:
        """What each session was told since the last call: the number of the load; 0 for nothing."""
        await asyncio.sleep(0.01)
        return [(await session.take())[2].num_waiting if session._pending else 0 for session in self.sessions]  # type: ignore[index]


@pytest.fixture
async def engine() -> Engine:
    return Engine()


async def test_the_others_hear_at_once(engine: Engine) -> None:
    engine.notice.came(engine.sessions[1])
    assert await engine.heard() == [1, 0, 1]


async def test_requests_of_several_sessions_are_told_to_all(engine: Engine) -> None:
    engine.notice.came(engine.sessions[0])
    engine.notice.came(engine.sessions[0])
    engine.notice.came(engine.sessions[1])
    assert await engine.heard() == [1, 1, 1]


async def test_a_flood_is_told_in_intervals(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrival_notice, "INTERVAL_S", 0.05)
    loop = asyncio.get_running_loop()
    until = loop.time() + 0.5
    while loop.time() < until:
        for session in engine.sessions:
            engine.notice.came(session)
        await asyncio.sleep(0.001)
    assert 2 <= engine.num_loads <= 11


async def test_one_frontend_hears_nothing(engine: Engine) -> None:
    del engine.sessions[1:]
    engine.notice.came(engine.sessions[0])
    assert await engine.heard() == [0]
    assert engine.num_loads == 0
