"""Engines that are the test itself, behind a real pool and a real router."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

from triptych.errors import TriptychError
from triptych.v1 import common_pb2, engine_pb2
from triptych_common.cluster.pool import Pool
from triptych_common.rpc.status import to_request_error
from triptych_frontend.engines.connection import CarriedRequest, EngineConnection
from triptych_frontend.engines.router import EngineRouter

from support.waiting import until

_MODEL = common_pb2.ModelInfo(capabilities=common_pb2.Capabilities(continuation=True))


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
        self.requests: list[engine_pb2.EngineRequest] = []
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
        self.requests.append(carried.request)
        self.on_sent()

    def crash(self) -> None:
        with suppress(asyncio.InvalidStateError):
            self.end.set_result("it crashed")

    def say(self, request_id: str, *token_ids: int, index: int = 0, going_away: bool = False) -> None:
        output = engine_pb2.SequenceOutput(request_id=request_id, index=index, token_ids=token_ids)
        self.received(engine_pb2.SessionResponse(outputs=[output] if token_ids else [], going_away=going_away))

    def refuse(self, request_id: str, error: TriptychError, *, going_away: bool = False) -> None:
        failed = engine_pb2.SequenceOutput(
            request_id=request_id, finish_reason=common_pb2.FINISH_REASON_ERROR, error=to_request_error(error)
        )
        self.received(engine_pb2.SessionResponse(outputs=[failed], going_away=going_away))


class Heard:
    """What a listener heard."""

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self.errors: list[TriptychError] = []
        self.token_ids: dict[int, list[int]] = {}
        self._then = then

    def on_output(self, index: int, output: engine_pb2.SequenceOutput) -> None:
        self.token_ids.setdefault(index, []).extend(output.token_ids)

    def on_error(self, index: int, error: TriptychError) -> None:
        self.errors.append(error)
        self._then()


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
