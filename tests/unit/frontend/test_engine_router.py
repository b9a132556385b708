"""Who gets a request that its engine did not take, and what waits for an engine that left a moment ago."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.drivers.engine_router import Heard, a_request, engines
from support.waiting import until
from triptych.errors import QueueFullError, ServiceUnavailableError
from triptych_common.cluster import connection as connection_module


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "MIN_BACKOFF_S", 0.001)


async def test_a_successor_with_another_address_is_waited_for() -> None:
    """On Kubernetes each pod has its own, and a name stops to give the old one at once."""
    async with engines("a:1") as (router, made, resolver):
        made["a:1"].goes_away()
        resolver.update(("b:1",))
        made["b:1"].is_up.clear()
        heard = Heard()
        router.start(a_request(), heard)
        await asyncio.sleep(0.05)
        made["b:1"].is_up.set()
        await until(lambda: made["b:1"].sent == ["r"])
        assert not heard.errors


async def test_a_request_that_ends_each_engine_does_not_go_round_for_ever() -> None:
    async with engines("a:1", "b:1", "c:1") as (router, made, _):
        for engine in made.values():
            engine.on_sent = lambda engine=engine: asyncio.get_running_loop().call_soon(engine.crash)  # type: ignore[misc]
        heard = Heard()
        router.start(a_request(), heard)
        await until(lambda: bool(heard.errors))
        assert sum(len(engine.sent) for engine in made.values()) <= 4


async def test_what_a_full_engine_refuses_does_not_wait_for_another() -> None:
    async with engines("a:1", "b:1") as (router, made, _):
        made["b:1"].is_up.clear()
        made["b:1"].crash()
        await until(lambda: not made["b:1"].is_connected)
        heard = Heard()
        router.start(a_request(), heard)
        made["a:1"].refuse("r", QueueFullError("full"))
        assert [str(error) for error in heard.errors] == ["full"]


async def test_a_refusal_in_the_message_that_announces_the_end_waits_for_another_engine() -> None:
    async with engines("a:1", "b:1") as (router, made, _):
        made["b:1"].is_up.clear()
        made["b:1"].crash()
        await until(lambda: not made["b:1"].is_connected)
        router._pool._left.clear()  # long ago
        heard = Heard()
        router.start(a_request(), heard)
        made["a:1"].refuse("r", ServiceUnavailableError("draining"), going_away=True)
        assert not heard.errors
        made["b:1"].is_up.set()
        await until(lambda: made["b:1"].sent == ["r-1"])


async def test_a_call_that_was_closed_as_its_engine_was_lost_goes_nowhere() -> None:
    async with engines("a:1", "b:1") as (router, made, _):
        made["b:1"].goes_away()
        router.start(a_request("first"), Heard(lambda: second.close()))
        second = router.start(a_request("second"), Heard())
        placement: Any = made["a:1"].carried["first"]
        placement.tried |= {"x", "y", "z"}  # it has been everywhere
        made["b:1"].is_going_away = False
        made["b:1"].on_change()
        made["a:1"].is_up.clear()
        made["a:1"].crash()
        await until(lambda: not made["a:1"].is_connected)
        await asyncio.sleep(0)
        assert made["b:1"].sent == []
        assert made["b:1"].is_idle


async def test_a_call_that_is_closed_or_aborted_while_it_waits() -> None:
    async with engines("a:1") as (router, made, _):
        made["a:1"].is_up.clear()
        made["a:1"].crash()
        await until(lambda: not made["a:1"].is_connected)
        closed, aborted = router.start(a_request("closed"), Heard()), router.start(a_request("aborted", n=2), Heard())
        closed.close()
        aborted.abort(1)
        await until(lambda: len(router._placing) == 1)
        made["a:1"].is_up.set()
        await until(lambda: made["a:1"].sent == ["aborted"])
        assert [(one.request_id, one.index) for one in made["a:1"].ending().abort_sequences] == [("aborted", 1)]


async def test_nothing_waits_for_an_engine_that_has_been_away_for_long() -> None:
    async with engines("a:1") as (router, made, _):
        made["a:1"].is_up.clear()
        made["a:1"].crash()
        await until(lambda: not made["a:1"].is_connected)
        router._pool._left.clear()
        with pytest.raises(ServiceUnavailableError, match="it crashed"):
            router.start(a_request(), Heard())
