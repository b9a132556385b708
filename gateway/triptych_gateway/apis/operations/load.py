"""GET /load: how busy frontends, engines and encoders are."""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

from fastapi import Request
from google.protobuf.message import Message
from pydantic import BaseModel, Field
from triptych.v1 import common_pb2

from triptych_gateway.access.routes import Access, AccessRouter
from triptych_gateway.frontends.loads import merged_loads
from triptych_gateway.state import gateway_of, request_id_of
from triptych_gateway.wire.errors import openapi_responses
from triptych_gateway.wire.schema import optional

ServiceState = Literal["starting", "serving", "draining", "sleeping", "unavailable", "unknown"]


class _ServiceLoad(BaseModel):
    id: Annotated[str, Field(description="Differs after each start of the service. Empty while it is away.")]
    state: ServiceState


class FrontendLoad(_ServiceLoad):
    """A frontend that this gateway uses."""

    num_requests: Annotated[int, Field(description="Calls that it works on, of all its clients.")]


class EngineLoad(_ServiceLoad):
    """An engine, as of its last step. The numbers are null while no frontend has a connection to it."""

    num_running: int | None = optional("Sequences in the batch.")
    num_waiting: int | None = optional("Sequences in the queue.")
    num_blocks: int | None = optional("Blocks of the KV cache.")
    num_free_blocks: int | None = optional("Those of them that hold no live sequence's tokens; cached prefixes are among them.")
    block_size: int | None = optional("Tokens that a block holds.")
    prefix_cache_queries: int | None = optional("Prompt tokens looked up in the prefix cache, since start.")
    prefix_cache_hits: int | None = optional("Those of them that were found.")
    num_preemptions: int | None = optional("Since start.")
    num_generated_tokens: int | None = optional("Since start.")


class EncoderLoad(_ServiceLoad):
    """An encoder and its cache. The numbers are null if it did not answer within a second."""

    queue_length: int | None = optional("Items that wait to be encoded.")
    num_entries: int | None = optional("Items whose embeddings are in the cache.")
    used_bytes: int | None = optional("Size of the cache's entries.")
    capacity_bytes: int | None = optional("Size of the cache.")
    leased_bytes: int | None = optional("Size of the entries that live requests hold.")
    num_local_hits: int | None = optional("Items found in the cache, since start.")
    num_shared_hits: int | None = optional("Items found in the store that encoders share, since start.")
    num_joined: int | None = optional("Items that another request was encoding, since start.")
    num_misses: int | None = optional("Items that were encoded, since start.")
    num_evictions: int | None = optional("Since start.")


class LoadResponse(BaseModel):
    """How busy the services are. A service that several frontends use is listed once."""

    frontends: list[FrontendLoad]
    engines: list[EngineLoad]
    encoders: list[EncoderLoad]


router = AccessRouter(access=Access.OPERATOR, tags=["Operations"], responses=openapi_responses())
_STATES = {
    state: cast(ServiceState, name.removeprefix("SERVER_STATE_").lower()) if state else "unknown"
    for name, state in common_pb2.ServerState.items()
}


@router.get("/load")
async def load(request: Request) -> LoadResponse:
    """How busy the services behind this gateway are: queues, KV caches, encoder caches."""
    loads = await gateway_of(request).frontend.loads(request_id_of(request))
    merged = merged_loads(loads)
    return LoadResponse(
        frontends=[FrontendLoad(**_identity(one.instance), num_requests=one.num_live_requests) for one in loads],
        engines=[
            EngineLoad(**_identity(one.instance), **_numbers(one.load, EngineLoad) if one.HasField("load") else {})
            for one in merged.engines
        ],
        encoders=[
            EncoderLoad(**_identity(one.instance), **_numbers(one.stats, EncoderLoad) if one.HasField("stats") else {})
            for one in merged.encoders
        ],
    )


def _numbers(message: Message, schema: type[BaseModel]) -> dict[str, Any]:
    """The fields of a message that a schema has under the same name."""
    names = schema.model_fields.keys() & message.DESCRIPTOR.fields_by_name.keys()
    return {name: getattr(message, name) for name in names}


def _identity(instance: common_pb2.Instance) -> dict[str, Any]:
    return {"id": instance.id, "state": _STATES.get(instance.state, "unknown")}
