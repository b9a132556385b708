"""GET /load."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

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
    num_running: Annotated[int | None, Field(description="Sequences in the batch.")] = None
    num_waiting: Annotated[int | None, Field(description="Sequences in the queue.")] = None
    num_blocks: Annotated[int | None, Field(description="Blocks of the KV cache.")] = None
    num_free_blocks: Annotated[
        int | None, Field(description="Those of them that hold no live sequence's tokens; cached prefixes are among them.")
    ] = None
    block_size: Annotated[int | None, Field(description="Tokens that a block holds.")] = None
    prefix_cache_queries: Annotated[int | None, Field(description="Prompt tokens looked up in the prefix cache, since start.")] = (
        None
    )
    prefix_cache_hits: Annotated[int | None, Field(description="Those of them that were found.")] = None
    num_preemptions: Annotated[int | None, Field(description="Since start.")] = None
    num_generated_tokens: Annotated[int | None, Field(description="Since start.")] = None


class EncoderLoad(BaseModel):
    """An encoder and its cache. The numbers are null if it did not answer within a second."""

    id: Annotated[str, Field(description="Differs after each start of the service. Empty while it is away.")]
    state: ServiceState
    queue_length: Annotated[int | None, Field(description="Items that wait to be encoded.")] = None
    num_entries: Annotated[int | None, Field(description="Items whose embeddings are in the cache.")] = None
    used_bytes: Annotated[int | None, Field(description="Size of the cache's entries.")] = None
    capacity_bytes: Annotated[int | None, Field(description="Size of the cache.")] = None
    leased_bytes: Annotated[int | None, Field(description="Size of the entries that live requests hold.")] = None
    num_local_hits: Annotated[int | None, Field(description="Items found in the cache, since start.")] = None
    num_shared_hits: Annotated[int | None, Field(description="Items found in the store that encoders share, since start.")] = None
    num_joined: Annotated[int | None, Field(description="Items that another request was encoding, since start.")] = None
    num_misses: Annotated[int | None, Field(description="Items that were encoded, since start.")] = None
    num_evictions: Annotated[int | None, Field(description="Since start.")] = None


class LoadResponse(BaseModel):
    """How busy the services are. A service that several frontends use is listed once."""

    frontends: list[FrontendLoad]
    engines: list[EngineLoad]
    encoders: list[EncoderLoad]
