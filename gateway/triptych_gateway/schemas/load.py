"""GET /load."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from triptych_gateway.schemas.common import optional

ServiceState = Literal["starting", "serving", "draining", "sleeping", "unavailable", "unknown"]


class FrontendLoad(BaseModel):
    """A frontend that this gateway uses."""

    id: Annotated[str, Field(description="Differs after each start of the service.")]
    state: ServiceState
    num_requests: Annotated[int, Field(description="Calls that it works on, of all its clients.")]


class EngineLoad(BaseModel):
    """An engine, as of its last step. The numbers are null while no frontend has a connection to it."""

    id: Annotated[str, Field(description="Differs after each start of the service. Empty while it is away.")]
    state: ServiceState
    num_running: int | None = optional("Sequences in the batch.")
    num_waiting: int | None = optional("Sequences in the queue.")
    num_blocks: int | None = optional("Blocks of the KV cache.")
    num_free_blocks: int | None = optional("Those of them that hold no live sequence's tokens; cached prefixes are among them.")
    block_size: int | None = optional("Tokens that a block holds.")
    prefix_cache_queries: int | None = optional("Prompt tokens looked up in the prefix cache, since start.")
    prefix_cache_hits: int | None = optional("Those of them that were found.")
    num_preemptions: int | None = optional("Since start.")
    num_generated_tokens: int | None = optional("Since start.")


class EncoderLoad(BaseModel):
    """An encoder and its cache. The numbers are null if it did not answer within a second."""

    id: Annotated[str, Field(description="Differs after each start of the service. Empty while it is away.")]
    state: ServiceState
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
