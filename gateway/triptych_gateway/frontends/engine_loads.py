"""How busy all engines behind this gateway are, for metrics. The frontends know it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from triptych.errors import TriptychError
from triptych.v1 import engine_pb2
from triptych_common.cluster.pool import Pool
from triptych_common.rpc.interceptors import new_request_id

from triptych_gateway.frontends.client import FrontendClient
from triptych_gateway.frontends.connection import FrontendConnection

#: Age after which the frontends are asked again, in seconds. An endpoint picker may read the metrics twenty times a second.
_MAX_AGE_S = 0.5


@dataclass
class ModelLoad:
    """The sum over the engines of one model."""

    model: str
    num_running: int = 0
    num_waiting: int = 0
    num_blocks: int = 0
    num_free_blocks: int = 0
    #: Tokens per block -> blocks.
    blocks_by_size: Counter[int] = field(default_factory=Counter)

    def add(self, load: engine_pb2.Load) -> None:
        """Add an engine."""
        self.num_running += load.num_running
        self.num_waiting += load.num_waiting
        self.num_blocks += load.num_blocks
        self.num_free_blocks += load.num_free_blocks
        self.blocks_by_size[load.block_size] += load.num_blocks


class EngineLoads:
    """Asks the frontends, at most every `_MAX_AGE_S`, whoever reads."""

    def __init__(self, pool: Pool[FrontendConnection], client: FrontendClient) -> None:
        self._pool = pool
        self._client = client
        self._asking = asyncio.Lock()
        self._loads: Sequence[ModelLoad] = ()
        self._asked_s = -_MAX_AGE_S

    async def read(self) -> Sequence[ModelLoad]:
        """The load of each model. Empty if no frontend answers."""
        async with self._asking:
            if time.monotonic() - self._asked_s >= _MAX_AGE_S:
                self._loads = await self._ask()
                self._asked_s = time.monotonic()
            return self._loads

    async def _ask(self) -> Sequence[ModelLoad]:
        if not any(frontend.is_connected for frontend in self._pool.connections):
            return ()
        try:
            answers = await self._client.loads(new_request_id())
        except TriptychError:
            return ()
        loads: dict[str, ModelLoad] = {}
        seen: set[str] = set()
        for answer in answers:
            frontend = self._pool.by_instance(answer.instance.id)
            if frontend is None:
                continue
            load = loads.setdefault(frontend.model.name, ModelLoad(frontend.model.name))
            for engine in answer.engines:
                if engine.HasField("load") and engine.instance.id not in seen:
                    seen.add(engine.instance.id)
                    load.add(engine.load)
        return tuple(loads.values())
