"""GET /load: how busy frontends, engines and encoders are."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from google.protobuf.message import Message
from pydantic import BaseModel
from triptych.v1 import common_pb2, generation_pb2

from triptych_gateway.access.routes import Access, AccessRouter
from triptych_gateway.errors import openapi_responses
from triptych_gateway.frontends.loads import merged_loads
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


@router.get("/load")
async def load(request: Request) -> LoadResponse:
    """How busy the services behind this gateway are: queues, KV caches, encoder caches."""
    loads = await gateway_of(request).frontend.loads(request_id_of(request))
    merged = merged_loads(loads)
    return LoadResponse(
        frontends=[
            FrontendLoad(id=one.instance.id, state=_state(one.instance), num_requests=one.num_live_requests) for one in loads
        ],
        engines=[_engine(engine) for engine in merged.engines],
        encoders=[_encoder(encoder) for encoder in merged.encoders],
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
