"""The loads that several frontends report, as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from triptych.v1 import generation_pb2

Load = TypeVar("Load", generation_pb2.EngineLoad, generation_pb2.EncoderLoad)


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
    found: list[Load] = list(by_id.values())
    return found + away
