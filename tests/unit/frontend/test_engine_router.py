"""Who gets a request that its engine did not take, and what waits for an engine that left a moment ago."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

import pytest
from support.waiting import until
from triptych.errors import QueueFullError, ServiceUnavailableError, TriptychError
from triptych.v1 import common_pb2, engine_pb2
from triptych_common.cluster import connection as connection_module
from triptych_common.cluster.pool import Pool
from triptych_common.rpc.status import to_request_error
from triptych_frontend.engines.connection import CarriedRequest, EngineConnection
from triptych_frontend.engines.router import EngineRouter

_MODEL = common_pb2.ModelInfo()


class Addresses:
    """A resolver whose addresses the test changes."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses
        self.update: Callable[[Sequence[str]], None] = lambda addresses: None

    async def watch(self, update: Callable[[Sequence[str]], None]) -> None:
        self.update = update
        update(self._addresses)
        await asyncio.Event().wait()

    def resolve_now(self) -> None:
        pass


class Engine(EngineConnection):
    """A connection whose engine is the test: each of its lives is another instance."""

    numbers = itertools.count()

    def __init__(self, address: str) -> None:
        super().__init__(address, _MODEL)
        self.sent: list[str] = []
        self.is_up = asyncio.Event()
        self.is_up.set()
        self.end: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        #: Called with each request.
        self.on_sent: Callable[[], None] = lambda: None

    async def serve(self) -> str:
        await self.is_up.wait()
        self.end = asyncio.get_running_loop().create_future()
        instance = common_pb2.Instance(id=str(next(self.numbers)), state=common_pb2.SERVER_STATE_SERVING)
        self.connected(instance, _MODEL)
        return await self.end

    def send(self, carried: CarriedRequest) -> None:
        super().send(carried)
        self.sent.append(carried.request.request_id)
        self.on_sent()

    def crash(self) -> None:
        with suppress(asyncio.InvalidStateError):
            self.end.set_result("it crashed")

    def refuse(self, request_id: str, error: TriptychError, *, going_away: bool = False) -> None:
        failed = engine_pb2.SequenceOutput(
            request_id=request_id, finish_reason=common_pb2.FINISH_REASON_ERROR, error=to_request_error(error)
        )
        self.received(engine_pb2.SessionResponse(outputs=[failed], going_away=going_away))


class Heard:
    """What a listener heard."""

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self.errors: list[TriptychError] = []
        self._then = then

    def on_output(self, index: int, output: engine_pb2.SequenceOutput) -> None: ...

    def on_error(self, index: int, error: TriptychError) -> None:
        self.errors.append(error)
        self._then()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "MIN_BACKOFF_S", 0.001)


@asynccontextmanager
async def engines(*addresses: str) -> AsyncIterator[tuple[EngineRouter, dict[str, Engine], Addresses]]:
    """A router in front of engines that it has all found."""
    made: dict[str, Engine] = {}

    def connect(address: str) -> Engine:
        made[address] = Engine(address)
        return made[address]

    resolver = Addresses(addresses)
    pool: Pool[Engine] = Pool("engine", resolver, connect)
    task, router = asyncio.create_task(pool.run()), EngineRouter(pool)  # type: ignore[arg-type]
    try:
        await until(lambda: len(pool.ready) == len(addresses))
        yield router, made, resolver
    finally:
        await router.close()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def a_request(name: str = "r", n: int = 1) -> engine_pb2.EngineRequest:
    return engine_pb2.EngineRequest(request_id=name, n=n)


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
        await until(lambda: made["b:1"].sent == ["r"])


async def test_a_call_that_was_closed_as_its_engine_was_lost_goes_nowhere() -> None:
    async with engines("a:1", "b:1") as (router, made, _):
        made["b:1"].goes_away()
        first = router.start(a_request("first"), Heard(lambda: second.close()))
        second = router.start(a_request("second"), Heard())
        first._has_output = True
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
