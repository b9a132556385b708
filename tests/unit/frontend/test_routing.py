"""Requests go to the engine where they cost least."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from support.drivers.engine_router import Engine, Heard, a_request, engines
from support.waiting import until
from triptych.v1 import engine_pb2
from triptych_common.model.blocks import prefix_ids
from triptych_frontend.engines.policy import Routing, demand_of
from triptych_frontend.engines.router import EngineRouter

_SIZE = 16


def prompt(number: int, num_tokens: int = 160) -> list[int]:
    return [number, *range(1, num_tokens)]


def asks(token_ids: Sequence[int], name: str = "r", tenant: str = "") -> engine_pb2.EngineRequest:
    request = a_request(name)
    request.prompt_token_ids.extend(token_ids)
    request.context.tenant = tenant
    return request


def holds(engine: Engine, token_ids: Sequence[int], tenant: str = "") -> None:
    salt = f"{len(tenant)}:{tenant}" if tenant else ""
    engine.blocks.update(
        engine_pb2.WatchBlocksResponse(sequence=1, is_whole=True, added=prefix_ids(salt, token_ids, _SIZE), block_size=_SIZE)
    )


async def chosen(router: EngineRouter, request: engine_pb2.EngineRequest, routing: Routing = "prefix") -> str:
    engine = router.choose(demand_of(request, routing))
    assert engine is not None
    return engine.address


async def test_a_prompt_goes_where_its_beginning_is_until_that_costs_more() -> None:
    async with engines("a:1", "b:1") as (router, made, _):
        for engine in made.values():
            holds(engine, [])
        for address, engine in made.items():
            holds(engine, prompt(1, 640))
            assert await chosen(router, asks([*prompt(1, 640), 5, 6])) == address
            assert await chosen(router, asks(prompt(1, 640), tenant="t")) == await chosen(router, asks(prompt(1, 640), tenant="t"))
            engine._num_unreported = 20
            assert await chosen(router, asks([*prompt(1, 640), 5, 6])) != address
            assert await chosen(router, asks([*prompt(1, 640), 5, 6]), "least-load") != address
            engine._num_unreported = 0
            holds(engine, [])


async def test_tenants_do_not_find_the_blocks_of_others() -> None:
    async with engines("a:1", "b:1") as (router, made, _):
        holds(made["a:1"], prompt(1, 640), tenant="one")
        holds(made["b:1"], prompt(1, 640), tenant="two")
        assert await chosen(router, asks(prompt(1, 640), tenant="one")) == "a:1"
        assert await chosen(router, asks(prompt(1, 640), tenant="two")) == "b:1"


async def test_what_was_sent_counts_before_the_engine_tells_of_it() -> None:
    async with engines("a:1", "b:1") as (router, made, _):
        for engine in made.values():
            holds(engine, [])
        router.start(asks(prompt(1, 640), "first"), Heard())
        home = next(one for one in made.values() if one.sent)
        assert home.num_pending_tokens == 640
        # It has work, and is the cheaper one for the same beginning all the same.
        home.say("first", 7)
        assert home.num_pending_tokens == 0
        assert await chosen(router, asks([*prompt(1, 640), 9])) == home.address


async def test_prompts_that_are_being_computed_are_load() -> None:
    async with engines("a:1", "b:1") as (router, made, _):
        for engine in made.values():
            holds(engine, [])
        for number in range(8):
            router.start(asks(prompt(number, 3200), f"r{number}"), Heard())
        assert sorted(len(one.sent) for one in made.values()) == [4, 4]
        await router.close()


async def test_new_prompts_with_one_beginning_have_one_home_for_all_frontends() -> None:
    homes = set()
    for _ in range(3):
        async with engines("a:1", "b:1", "c:1") as (router, made, _resolver):
            for engine in made.values():
                holds(engine, [])
            homes.add(tuple([await chosen(router, asks(prompt(number))) for number in range(20)]))
    assert len(homes) == 1
    assert len(set(homes.pop())) == 3


@pytest.mark.parametrize("addresses", [("a:1", "b:1"), ("a:1", "b:1", "c:1", "d:1")])
@pytest.mark.parametrize("is_known", [False, True])
async def test_requests_with_one_key_have_one_home(addresses: tuple[str, ...], is_known: bool) -> None:
    async with engines(*addresses) as (_router, made, _resolver):
        for engine in made.values():
            holds(engine, prompt(0) if is_known else [])

        def home(number: int, key: str, tenant: str = "") -> str:
            request = asks([*prompt(0), number] if is_known else prompt(number), tenant=tenant)
            request.affinity_key = key
            pick = demand_of(request).pick
            assert pick is not None
            return pick(list(made.values())).address

        homes = {key: {home(number, f"session {key}") for number in range(20)} for key in range(40)}
        assert all(len(found) == 1 for found in homes.values())
        assert set.union(*homes.values()) == set(addresses)
        assert {home(0, "session 0", str(tenant)) for tenant in range(40)} == set(addresses), "tenants have sessions of their own"


async def test_a_key_costs_no_more_than_two_sequences() -> None:
    async with engines("a:1", "b:1") as (router, made, _resolver):
        for engine in made.values():
            holds(engine, [])
        for number in range(8):
            request = asks(prompt(number), f"r{number}")
            request.affinity_key = "session"
            router.start(request, Heard())
        fewest, most = sorted(len(one.sent) for one in made.values())
        assert fewest + most == 8
        assert most - fewest <= 2


async def test_what_all_engines_hold_has_no_home() -> None:
    """Else the owner of a system prompt that everybody has would always have the most to do."""
    async with engines("a:1", "b:1", "c:1") as (router, made, _resolver):
        shared = prompt(1)
        for engine in made.values():
            holds(engine, shared)
        for number in range(12):
            router.start(asks([*shared, *range(1000 * number, 1000 * number + 40)], f"r{number}"), Heard())
        assert [len(one.sent) for one in made.values()] == [4, 4, 4]


async def test_a_conversation_stays_unless_far_fewer_sequences_came_elsewhere() -> None:
    """All engines hold its system prompt, and one its first turn, too."""
    async with engines("a:1", "b:1") as (router, made, _resolver):
        first_turn = prompt(1, 224)
        holds(made["a:1"], first_turn)
        holds(made["b:1"], prompt(1))
        for *recent, home in ((1.0, 0.0, "a:1"), (10.0, 9.0, "a:1"), (10.0, 6.0, "b:1")):
            for engine, num_recent in zip(made.values(), recent, strict=True):
                engine.received(engine_pb2.SessionResponse(load=engine_pb2.Load(num_recent=num_recent)))
            assert await chosen(router, asks([*first_turn, 5, 6])) == home


async def test_a_conversation_begins_where_fewest_sequences_came_lately() -> None:
    """Those that pause are no load, and come back."""
    async with engines("a:1", "b:1", "c:1") as (router, made, _resolver):
        shared = prompt(1)
        for address, num_recent in (("a:1", 3.0), ("b:1", 1.5), ("c:1", 2.0)):
            holds(made[address], shared)
            made[address].received(engine_pb2.SessionResponse(load=engine_pb2.Load(num_recent=num_recent)))
        assert await chosen(router, asks([*shared, 7])) == "b:1"
        made["b:1"].received(engine_pb2.SessionResponse(load=engine_pb2.Load(num_recent=1.5, num_running=3)))
        assert await chosen(router, asks([*shared, 7])) == "c:1", "what costs more is not among those that cost the same"
        router.start(asks([*shared, 7], "first"), Heard())
        assert made["c:1"].num_recent > 2.9


async def test_an_engine_whose_load_was_told_long_ago_is_asked_again() -> None:
    """What others had brought there is over, but this frontend had no request there that would have told it."""
    async with engines("a:1", "b:1") as (router, made, _resolver):
        for engine in made.values():
            holds(engine, [])
        told = [engine_pb2.WatchLoadResponse(load=engine_pb2.Load(num_running=50, num_recent=50.0)), engine_pb2.WatchLoadResponse()]
        made["a:1"]._stub = Watched(told)  # type: ignore[assignment]
        watching = asyncio.create_task(made["a:1"]._watch_load())
        await until(lambda: made["a:1"].load == 50)
        assert {await chosen(router, asks(prompt(number))) for number in range(10)} == {"b:1"}
        told[1].load.SetInParent()
        made["a:1"]._stub.may_go_on.set()  # type: ignore[attr-defined]
        await until(lambda: made["a:1"].load == 0)
        assert await chosen(router, asks(prompt(0))) == "a:1"
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


class Watched:
    """A stub of an engine that tells its load."""

    def __init__(self, told: Sequence[engine_pb2.WatchLoadResponse]) -> None:
        self._told = told
        self.may_go_on = asyncio.Event()

    def WatchLoad(self, request: engine_pb2.WatchLoadRequest) -> Watched:  # noqa: N802 - as the stub has it
        return self

    async def __aiter__(self) -> AsyncIterator[engine_pb2.WatchLoadResponse]:
        yield self._told[0]
        await self.may_go_on.wait()
        yield self._told[1]
        await asyncio.Event().wait()

    def cancel(self) -> None:
        """As a call."""


async def test_round_robin_takes_turns_also_with_an_engine_that_joins() -> None:
    async with engines("a:1", "b:1", "c:1") as (router, made, resolver):
        router._routing = "round-robin"
        for number in range(9):
            router.start(asks(prompt(1), f"r{number}"), Heard())
        assert [len(one.sent) for one in made.values()] == [3, 3, 3]
        resolver.update(["a:1", "b:1", "c:1", "d:1"])
        await until(lambda: len(router._pool.ready) == 4)
        for number in range(9, 13):
            router.start(asks(prompt(1), f"r{number}"), Heard())
        assert [len(one.sent) for one in made.values()] == [4, 4, 4, 1]


@pytest.mark.parametrize("routing", ["least-load", "round-robin"])
async def test_each_frontend_begins_with_another_engine(routing: Routing) -> None:
    firsts = set()
    for _ in range(20):
        async with engines("a:1", "b:1") as (router, _, _):
            firsts.add(await chosen(router, asks(prompt(1)), routing))
    assert firsts == {"a:1", "b:1"}


async def test_a_lost_engine_holds_nothing_and_has_nothing_to_do() -> None:
    async with engines("a:1", "b:1") as (router, made, _):
        for engine in made.values():
            holds(engine, prompt(1))
        router.start(asks(prompt(2), "r"), Heard())
        home = next(one for one in made.values() if one.sent)
        home.is_up.clear()
        home.crash()
        await until(lambda: not home.is_connected)
        await asyncio.sleep(0)
        assert (home.blocks.held, home.num_pending_tokens) == (set(), 0)
