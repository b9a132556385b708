"""How busy the engines and encoders behind this gateway are. The frontends know it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import TypeVar

from triptych.errors import TriptychError
from triptych.v1 import engine_pb2, generation_pb2
from triptych_common.cluster.pool import Pool
from triptych_common.rpc.interceptors import new_request_id

from triptych_gateway.frontends.client import FrontendClient
from triptych_gateway.frontends.connection import FrontendConnection

#: Age after which the frontends are asked again, in seconds. An endpoint picker may read the metrics twenty times a second.
_MAX_AGE_S = 0.5
#: Model -> the loads of its engines.
ModelLoads = Mapping[str, Sequence[engine_pb2.Load]]
Load = TypeVar("Load", generation_pb2.EngineLoad, generation_pb2.EncoderLoad)


class EngineLoads:
    """Asks the frontends, at most every `_MAX_AGE_S`, whoever reads."""

    def __init__(self, pool: Pool[FrontendConnection], client: FrontendClient) -> None:
        self._pool, self._client = pool, client
        self._asking = asyncio.Lock()
        self._loads: ModelLoads = {}
        self._asked_s = -_MAX_AGE_S

    async def read(self) -> ModelLoads:
        """Model -> the loads of its engines. Empty if no frontend answers."""
        async with self._asking:
            if time.monotonic() - self._asked_s >= _MAX_AGE_S:
                self._loads = await self._ask()
                self._asked_s = time.monotonic()
            return self._loads

    async def _ask(self) -> ModelLoads:
        if not any(frontend.is_connected for frontend in self._pool.connections):
            return {}
        try:
            answers = await self._client.loads(new_request_id())
        except TriptychError:
            return {}
        loads: dict[str, list[engine_pb2.Load]] = {}
        seen: set[str] = set()
        for answer in answers:
            frontend = self._pool.by_instance(answer.instance.id)
            if frontend is None:
                continue
            of_model = loads.setdefault(frontend.model.name, [])
            for engine in answer.engines:
                if engine.HasField("load") and engine.instance.id not in seen:
                    seen.add(engine.instance.id)
                    of_model.append(engine.load)
        return loads


def merged_loads(loads: Sequence[generation_pb2.GetLoadResponse]) -> generation_pb2.GetLoadResponse:
    """Engines and encoders that frontends see, each once, with the numbers of a frontend that has them."""
    return generation_pb2.GetLoadResponse(
        num_live_requests=sum(load.num_live_requests for load in loads),
        engines=_merged([list(load.engines) for load in loads], "load"),
        encoders=_merged([list(load.encoders) for load in loads], "stats"),
    )


def _merged(seen: Sequence[Sequence[Load]], numbers: str) -> list[Load]:
    """Services that are away have no id, so those of one frontend are listed: of the frontend that sees the most of them."""
    by_id: dict[str, Load] = {}
    away: list[Load] = []
    for services in seen:
        own_away = []
        for service in services:
            if service.instance.id:
                known = by_id.setdefault(service.instance.id, service)
                if not known.HasField(numbers):
                    by_id[service.instance.id] = service
            else:
                own_away.append(service)
        away = max(away, own_away, key=len)
    return list(by_id.values()) + away
