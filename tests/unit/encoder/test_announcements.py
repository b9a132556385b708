"""Announced keys: fetches of them wait for their bytes."""

from __future__ import annotations

import asyncio
import time

import pytest
from triptych_encoder.cache import announcements
from triptych_encoder.cache.announcements import Announcements


async def test_whoever_waits_goes_on_when_the_bytes_are_here() -> None:
    announced = Announcements()
    announced.announce(b"key", for_s=60)
    waits = [asyncio.create_task(announced.wait_for(b"key")) for _ in range(2)]
    await asyncio.sleep(0)
    assert not any(wait.done() for wait in waits)
    announced.fulfil(b"key")
    assert await asyncio.gather(*waits) == [True, True]
    assert not await announced.wait_for(b"key"), "it is no announcement any more"


async def test_nobody_waits_for_what_was_not_announced_or_did_not_come() -> None:
    announced = Announcements()
    assert not await announced.wait_for(b"key")
    announced.announce(b"key", for_s=0.01)
    assert not await announced.wait_for(b"key")
    assert not announced._by_key, "nothing is left of it"
    announced.fulfil(b"never announced")


async def test_bytes_that_come_as_the_time_ends_are_not_missed() -> None:
    announced = Announcements()
    announced.announce(b"key", for_s=0.01)
    wait = asyncio.create_task(announced.wait_for(b"key"))
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_later(0.02, announced.fulfil, b"key")
    time.sleep(0.05)  # noqa: ASYNC251  # the loop's next turn finds the end of the time first, then the bytes
    assert await wait


async def test_announced_again_is_waited_for_again() -> None:
    announced = Announcements()
    announced.announce(b"key", for_s=0.02)
    wait = asyncio.create_task(announced.wait_for(b"key"))
    await asyncio.sleep(0)
    announced.announce(b"key", for_s=60)
    assert await wait


async def test_the_oldest_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcements, "_MAX_ANNOUNCED", 2)
    announced = Announcements()
    for key in (b"a", b"b", b"a", b"c"):
        announced.announce(key, for_s=0.01)
    assert list(announced._by_key) == [b"a", b"c"]


async def test_nobody_waits_on_for_what_was_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcements, "_MAX_ANNOUNCED", 1)
    announced = Announcements()
    announced.announce(b"a", for_s=60)
    wait = asyncio.create_task(announced.wait_for(b"a"))
    await asyncio.sleep(0)
    announced.announce(b"b", for_s=60)
    assert await wait
    assert not await announced.wait_for(b"a")


async def test_a_withdrawn_key_is_waited_for_while_another_sender_is_left() -> None:
    announced = Announcements()
    for _ in range(2):
        announced.announce(b"key", for_s=60)
    wait = asyncio.create_task(announced.wait_for(b"key"))
    announced.withdraw(b"key")
    await asyncio.sleep(0)
    assert not wait.done()
    announced.withdraw(b"key")
    assert await wait, "a waiting caller looks again"
    assert not await announced.wait_for(b"key")
    announced.withdraw(b"key")
