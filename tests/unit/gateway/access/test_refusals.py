"""How long a key's requests wait, by how many of them were refused."""

from __future__ import annotations

import asyncio

import pytest
from triptych_gateway.access import rates
from triptych_gateway.access.rates import MAX_DELAY_S, RefusalPace


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def refused(pace: RefusalPace, number: int) -> None:
    for _ in range(number):
        pace.note("flood")


def test_requests_wait_after_more_than_a_hundred_refusals_until_they_are_twenty_a_second() -> None:
    pace = RefusalPace(Clock())
    refused(pace, 100)
    assert pace.delay_s("flood") == 0.0
    refused(pace, 30)
    delays = [pace.delay_s("flood") for _ in range(1000)]
    assert 1.0 <= min(delays) < 1.1 < 1.9 < max(delays) <= 2.0, "a second and a half, a third less or more"


def test_no_request_waits_for_long_however_many_are_refused() -> None:
    pace = RefusalPace(Clock())
    refused(pace, 10_000)
    delays = [pace.delay_s("flood") for _ in range(1000)]
    assert MAX_DELAY_S * 2 / 3 <= min(delays) < MAX_DELAY_S * 0.7 < MAX_DELAY_S * 0.95 < max(delays) <= MAX_DELAY_S


def test_other_keys_do_not_wait() -> None:
    pace = RefusalPace(Clock())
    refused(pace, 1000)
    assert pace.delay_s("quiet") == 0.0


def test_who_has_waited_and_is_refused_ten_times_a_second_does_not_wait() -> None:
    clock = Clock()
    pace = RefusalPace(clock)
    refused(pace, 1000)
    clock.now_s += MAX_DELAY_S
    for _ in range(1000):
        clock.now_s += 0.1
        assert pace.delay_s("flood") == 0.0
        pace.note("flood")


async def test_not_more_requests_wait_than_leave_connections_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "MAX_WAITING", 3)
    pace = RefusalPace(Clock())
    refused(pace, 1000)
    waiting = [asyncio.create_task(pace.wait("flood")) for _ in range(3)]
    await asyncio.sleep(0)
    async with asyncio.timeout(0.5):
        await pace.wait("flood")
    assert not any(task.done() for task in waiting)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    waiting = [asyncio.create_task(pace.wait("flood"))]
    await asyncio.sleep(0.05)
    assert not waiting[0].done(), "places are free again"
    waiting[0].cancel()
