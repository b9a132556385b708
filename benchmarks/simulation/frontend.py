"""A frontend of the simulation: the real router, calls, policies and what a connection knows, without transport.

It knows of the engines what a real one knows: loads and blocks that they have sent, and what it sent itself. It is one event loop,
so it does one thing after the other, and what comes meanwhile waits.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence, Set
from typing import Any

from triptych.errors import TriptychError
from triptych.v1 import common_pb2, engine_pb2
from triptych_common.arrivals import Arrivals
from triptych_common.cluster.breaker import Breaker
from triptych_common.cluster.pool import Pool
from triptych_common.cluster.router import Demand
from triptych_engine.load import Load
from triptych_engine.rpc.convert import load_message, output_message
from triptych_engine.scheduling.output import SequenceOutput
from triptych_frontend.engines.blocks import BlockIndex
from triptych_frontend.engines.call import EngineCall
from triptych_frontend.engines.connection import _LOAD_INTERVAL_S, CarriedRequest, EngineConnection
from triptych_frontend.engines.placement import Listener
from triptych_frontend.engines.router import EngineRouter

from benchmarks.simulation.engine import MODEL, Blocks, VirtualEngine
from benchmarks.simulation.setup import Setup
from benchmarks.simulation.timeline import Timeline


class VirtualConnection(EngineConnection):
    """What one frontend knows of one engine. Its messages take `Overheads.message_s`."""

    def __init__(self, timeline: Timeline, engine: VirtualEngine, frontend: VirtualFrontend) -> None:
        # Not the constructors of its bases: they open a channel. What follows is what these set, with the virtual clock.
        self.kind, self.address = "engine", engine.address
        self.model, self.why_away, self.is_going_away = MODEL, "", False
        self.in_doubt, self.breaker, self.on_change = asyncio.Event(), Breaker(timeline.clock), lambda: None
        self.num_other_calls = 0
        self.carried: dict[Any, CarriedRequest] = {}
        self._starts, self._ends = [], engine_pb2.SessionRequest()
        self.reported_load, self._arrivals = engine_pb2.Load(), Arrivals(timeline.clock)
        self.blocks = BlockIndex(timeline.clock)
        self.num_pending_tokens = self._num_reported = self._num_unreported = self._num_pooling = self._num_silent_ticks = 0
        self.turn = frontend.random.random() - 1
        self._request = engine_pb2.SessionRequest
        self._timeline, self._engine, self._frontend = timeline, engine, frontend
        self._reported_s, self.is_due = float("-inf"), False
        self.reconnected()
        engine.watchers.append(self)

    # What the frontend's router calls.

    def start(self, call_id: object, call: CarriedRequest, start: Any) -> None:
        self.carried[call_id] = call
        if self._engine.is_up:  # else the loss is on its way
            self._timeline.after(self._frontend.message_s, self._engine.submit, self._engine.life, self, start)

    def forget(self, request_id: str) -> None:
        self.carried.pop(request_id, None)

    # What the engine calls.

    def publish(self, outputs: list[SequenceOutput], load: Load, blocks: Blocks | None) -> None:
        if outputs or blocks is not None:
            load_now = load_message(load) if outputs else None
            self._frontend.hear(self._life(), len(outputs), blocks, self._take, outputs, load_now, blocks)
        if outputs:
            self._reported_s = self._timeline.now_s
        elif not self.is_due:  # WatchLoad of a session without requests
            self.is_due = True
            self._timeline.at(max(self._timeline.now_s, self._reported_s + _LOAD_INTERVAL_S), self._report_load)

    def notice(self, load: Load) -> None:
        self._frontend.hear(self._life(), 1, None, self._take_load, load_message(load))

    def _report_load(self) -> None:
        self.is_due, self._reported_s = False, self._timeline.now_s
        if self._engine.is_up and not self.carried:
            self._frontend.hear(self._life(), 0, None, self._take_idle, load_message(self._engine.load))

    def _life(self) -> Callable[[], bool]:
        life = self._engine.life
        return lambda: self.instance is not None and self._engine.life == life

    def _take_idle(self, load: engine_pb2.Load) -> None:
        if not self.carried:
            self._take_load(load)

    def _take(self, outputs: list[SequenceOutput], load: engine_pb2.Load | None, blocks: Blocks | None) -> None:
        if load is not None:
            messages = [output_message(output, output.request_id) for output in outputs]
            self.received(engine_pb2.SessionResponse(outputs=messages, load=load))
        if blocks is not None and not self.blocks.update(blocks):
            raise AssertionError(f"changes of the blocks of {self.address} are missing")

    def lost(self) -> None:
        """The connection broke: its calls go on elsewhere. As `disconnected`, which is a coroutine without a wait."""
        self.instance, self.why_away = None, "it was lost"
        self._frontend.pool.refresh()
        try:
            self.disconnected().send(None)
        except StopIteration:
            return
        raise AssertionError("`disconnected` waits for something")

    def reconnected(self) -> None:
        """The connection stands."""
        self.instance, self.why_away = common_pb2.Instance(id=self._engine.instance_id), ""
        self._take_load(load_message(self._engine.load))
        self.blocks.update(self._engine.snapshot())


class _Fleet(Pool[EngineConnection]):
    """The connections of a frontend, without a resolver."""

    def __init__(self, connections: Sequence[VirtualConnection]) -> None:
        # Not the base's: it takes a resolver, and makes the connections itself.
        self._kind = "engine"
        self._every = tuple(connections)
        self._connections = dict.fromkeys(one.address for one in connections)  # type: ignore[assignment]
        self.refresh()

    @property
    def connections(self) -> tuple[EngineConnection, ...]:
        return self._every

    def refresh(self) -> None:
        """Some connection was lost, or stands again."""
        self._ready = tuple(one for one in self._every if one.is_ready)


class _Router(EngineRouter):
    """The frontend's router. A request that finds no engine fails at once: no event loop is there on which it could wait."""

    def grace_left_s(
        self, demand: Demand[EngineConnection], tried: Set[str] = frozenset(), error: TriptychError | None = None
    ) -> float:
        return 0.0


class VirtualFrontend:
    """One frontend, with a connection to every engine.

    Args:
        number: of the frontend. It decides in which order the frontend goes through equal engines.
    """

    def __init__(self, timeline: Timeline, setup: Setup, engines: Sequence[VirtualEngine], number: int = 0) -> None:
        self.random = random.Random(number)
        self._timeline, self._overheads = timeline, setup.overheads
        self.message_s = setup.overheads.message_s
        self._choice_s = setup.overheads.choice_s.get(setup.routing, 0.0)
        self.connections = [VirtualConnection(timeline, engine, self) for engine in engines]
        self.pool = _Fleet(self.connections)
        self.router = _Router(self.pool, setup.routing)
        #: Requests that it works on.
        self.num_live = 0
        #: Time in which the event loop was busy, and until when it will be.
        self.busy_s = self._busy_until_s = 0.0

    def request(self, message: engine_pb2.EngineRequest, listener: Listener) -> None:
        """A request has come from the gateway."""
        cost_s = self._overheads.frontend_request_s + self._choice_s * len(self.connections)
        self._work(cost_s, self._place, message, listener)

    def _place(self, message: engine_pb2.EngineRequest, listener: Listener) -> None:
        try:
            EngineCall(self.router, message, listener, self.router._routing, self.router.num_moved)
        except TriptychError as error:
            listener.on_error(0, error)

    def hear(
        self, is_current: Callable[[], bool], num_outputs: int, blocks: Blocks | None, action: Callable[..., None], *args: Any
    ) -> None:
        """A message of an engine is on its way. It is dropped if the connection is lost before it is handled."""

        def handle() -> None:
            if is_current():
                action(*args)

        cost_s = self._overheads.frontend_token_s * num_outputs
        self._timeline.after(self.message_s, self._work, cost_s, handle)

    def _work(self, cost_s: float, action: Callable[..., None], *args: Any) -> None:
        """Do something on the event loop, after what it does already."""
        self.busy_s += cost_s
        self._busy_until_s = max(self._timeline.now_s, self._busy_until_s) + cost_s
        if self._busy_until_s == self._timeline.now_s:
            action(*args)
        else:
            self._timeline.at(self._busy_until_s, action, *args)
