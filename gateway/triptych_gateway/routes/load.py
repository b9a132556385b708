"""GET /load: how busy frontends, engines and encoders are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from fastapi import Request
from google.protobuf.message import Message
from pydantic import BaseModel
from triptych.v1 import common_pb2, generation_pb2

from triptych_gateway.access.routes import Access, AccessRouter
from triptych_gateway.errors import openapi_responses
from triptych_gateway.schemas.load import EncoderLoad, EngineLoad, FrontendLoad, LoadResponse, ServiceState
from triptych_gateway.state import gateway_of, request_id_of

router = AccessRouter(access=Access.OPERATOR, tags=["Operations"], responses=openapi_responses())
_STATES: dict[int, ServiceState] = {
    common_pb2.SERVER_STATE_STARTING: "starting",
    common_pb2.SERVER_STATE_SERVING: "serving",
    common_pb2.SERVER_STATE_DRAINING: "draining",
    common_pb2.SERVER_STATE_SLEEPING: "sleeping",
    common_pb2.SERVER_STATE_UNAVAILABLE: "unavailable",
}
Load = TypeVar("Load", EngineLoad, EncoderLoad)


@router.get("/load")
async def load(request: Request) -> LoadResponse:
    """How busy the services behind this gateway are: queues, KV caches, encoder caches."""
    loads = await gateway_of(request).frontend.loads(request_id_of(request))
    return LoadResponse(
        frontends=[
            FrontendLoad(id=one.instance.id, state=_state(one.instance), num_requests=one.num_live_requests) for one in loads
        ],
        engines=_merged([[_engine(engine) for engine in one.engines] for one in loads]),
        encoders=_merged([[_encoder(encoder) for encoder in one.encoders] for one in loads]),
    )


def _engine(engine: generation_pb2.EngineLoad) -> EngineLoad:
    numbers = _numbers(engine.load, EngineLoad) if engine.HasField("load") else {}
    return EngineLoad(id=engine.instance.id, state=_state(engine.instance), **numbers)


def _encoder(encoder: generation_pb2.EncoderLoad) -> EncoderLoad:
    numbers = _numbers(encoder.stats, EncoderLoad) if encoder.HasField("stats") else {}
    return EncoderLoad(id=encoder.instance.id, state=_state(encoder.instance), **numbers)


def _numbers(message: Message, schema: type[BaseModel]) -> dict[str, Any]:
    """The fields of a message that a schema has under the same name."""
    names = schema.model_fields.keys() & message.DESCRIPTOR.fields_by_name.keys()
    return {name: getattr(message, name) for name in names}


def _state(instance: common_pb2.Instance) -> ServiceState:
    return _STATES.get(instance.state, "unknown")


def _num_known(service: Load) -> int:
    return len(service.model_fields_set)


def _merged(seen: Sequence[Iterable[Load]]) -> list[Load]:
    """The services that frontends see, each once, with the numbers of a frontend that has them.

    Services that are away have no id, so those of one frontend are listed: of the frontend that sees the most of them.
    """
    by_id: dict[str, Load] = {}
    away: list[Load] = []
    for services in seen:
        own_away = []
        for service in services:
            if service.id:
                by_id[service.id] = max(by_id.get(service.id, service), service, key=_num_known)
            else:
                own_away.append(service)
        away = max(away, own_away, key=len)
    return list(by_id.values()) + away
