"""Which engine gets a request.

`prefix`: the engine where it costs least, in tokens: those of its prompt that the engine's prefix cache lacks; at most as many
again for prompts that were sent there and have no output yet; and so many for each sequence that runs or waits there. It is the
cost of NVIDIA Dynamo's router (missing blocks + active blocks), for an engine in which prompts take turns. Media are sticky
(`Router.choose`): what blocks are called depends on them.

Where some engines have the role to compute prompts, a long prompt goes to one of them, and on to another engine with its first
output token (`Placement`). Short ones, and those that another engine has cached, go there at once.
"""

from __future__ import annotations

import functools
import hashlib
import heapq
import math
from collections.abc import Callable, Sequence
from typing import Literal

from triptych.v1 import engine_pb2
from triptych_common.cluster.pool import rendezvous
from triptych_common.cluster.router import Demand
from triptych_common.model.blocks import adapter_salt, prefix_ids
from triptych_common.rpc.principal import Principal

from triptych_frontend.engines.connection import EngineConnection

Routing = Literal["prefix", "least-load", "round-robin"]
#: What a sequence that runs or waits costs, in prompt tokens. More would spread the load better, and find less in prefix caches.
_SEQUENCE_TOKENS = 64
#: Engines whose costs differ by less cost the same. Of these, the owner of the request's affinity key is chosen. Without a key it
#: is the one to which fewest sequences came lately; if none of them holds anything of the prompt, the same among two that own its
#: first block: so several frontends, which do not know of each other, send what begins alike to the same engines.
_GRAIN_TOKENS = 2 * _SEQUENCE_TOKENS
#: Engines whose missing tokens differ by at most this hold the same: the first block of many chats is their template's.
_SAME_TOKENS = 16
#: A prompt of which an engine that decodes lacks no more than so many tokens goes there: it computes them in a step or two.
_SHORT_TOKENS = 256
#: Blocks of a prompt that are compared. Their names take a microsecond each, on the event loop.
_MAX_BLOCKS = 1024


class PromptCost:
    """What a prompt costs at each engine. Called with engines, it chooses one."""

    def __init__(self, request: engine_pb2.EngineRequest) -> None:
        self._request, self._num_tokens, self._lora = request, len(request.prompt_token_ids), request.lora
        #: By tokens per block and the adapter's digest, which are the same in all engines that have the same settings and files.
        self._blocks: dict[tuple[int, str], list[int]] = {}
        self._key = f"{request.context.tenant}\0{request.affinity_key}".encode() if request.affinity_key else b""

    def __call__(self, engines: Sequence[EngineConnection]) -> EngineConnection:
        """The engine where the prompt costs least."""
        engines = of_role(engines, self.num_missing)
        missing = dict(zip(engines, map(self.num_missing, engines), strict=True))
        # An engine lets the shortest prompt take turns with the first, so that none waits for more than twice its own time.
        costs = {
            engine: num_missing + min(num_missing, engine.num_pending_tokens) + _SEQUENCE_TOKENS * engine.load
            for engine, num_missing in missing.items()
        }
        least = min(costs.values())
        near = [engine for engine, cost in costs.items() if cost - least < _GRAIN_TOKENS]
        if self._key:
            return max(near, key=lambda engine: rendezvous(engine.address, self._key))
        if len(near) > 2 and all(missing[engine] == self._num_tokens for engine in near):
            near = heapq.nlargest(2, near, key=self._ownership)

        def arrivals(engine: EngineConnection) -> tuple[float, int]:
            return engine.num_recent, costs[engine]

        fewest = min(missing[engine] for engine in near)
        holder = min((engine for engine in near if missing[engine] - fewest <= _SAME_TOKENS), key=arrivals)
        other = min(near, key=arrivals)
        # A conversation stays where most of it is cached, unless arrivals differ by more than chance: by more than a square root.
        return other if holder.num_recent - other.num_recent > math.sqrt(holder.num_recent) else holder

    def _ownership(self, engine: EngineConnection) -> int:
        """The engines for which it is largest own the prompt's first block, as in rendezvous hashing."""
        blocks = self._of(engine)
        mixed = (_number_of(engine.address) ^ (blocks[0] if blocks else 0)) * 0x9E3779B97F4A7C15
        return (mixed >> 29 ^ mixed) * 0xBF58476D1CE4E5B9 & 0xFFFF_FFFF_FFFF_FFFF

    def num_missing(self, engine: EngineConnection) -> int:
        """Tokens of the prompt that the engine has to compute."""
        blocks = engine.blocks
        return self._num_tokens - blocks.num_held(self._of(engine)) * blocks.block_size

    def sent_to(self, engine: EngineConnection) -> int:
        """The prompt was sent to this engine. Returns the tokens that it has to compute."""
        num_missing = self.num_missing(engine)
        engine.blocks.expect(self._of(engine))
        return num_missing

    def _of(self, engine: EngineConnection) -> list[int]:
        size, digest = engine.blocks.block_size, engine.digest_of(self._lora) if self._lora else ""
        blocks = self._blocks.get((size, digest))
        if blocks is None:
            request = self._request
            salt = adapter_salt(Principal(request.context.tenant).scoped_salt(request.cache_salt), digest)
            # Log probabilities of the prompt need all of it. Of an adapter that was not loaded yet, nothing is cached.
            is_known = bool(size) and not request.sampling.HasField("prompt_logprobs") and bool(digest) == bool(self._lora)
            blocks = prefix_ids(salt, request.prompt_token_ids[: size * _MAX_BLOCKS], size) if is_known else []
            self._blocks[size, digest] = blocks
        return blocks


@functools.lru_cache(maxsize=1 << 14)
def _number_of(address: str) -> int:
    return int.from_bytes(hashlib.blake2b(address.encode(), digest_size=8).digest())


def of_role(engines: Sequence[EngineConnection], num_missing: Callable[[EngineConnection], int]) -> Sequence[EngineConnection]:
    """Those among which a request may choose by its prompt: all, if they have the same role.

    Args:
        num_missing: tokens of the prompt that an engine has to compute.
    """
    prefill = [engine for engine in engines if engine.is_for_prompts]
    if not prefill or len(prefill) == len(engines):
        return engines
    others = [engine for engine in engines if not engine.is_for_prompts]
    return others if min(map(num_missing, others)) <= _SHORT_TOKENS else prefill


def demand_of(request: engine_pb2.EngineRequest, routing: Routing = "prefix") -> Demand[EngineConnection]:
    """What a request asks of the engine that takes it."""

    def suits(engine: EngineConnection) -> bool:
        able = engine.model.capabilities
        if request.kv_source and not has_room(engine, len(request.prompt_token_ids)):
            return False
        return (able.continuation or not request.num_output_tokens) and (able.lora or not request.lora)

    def num_missing(engine: EngineConnection) -> int:
        return len(request.prompt_token_ids)

    if request.media:
        # The engine may hold the embeddings and the KV cache.
        return Demand(suits, request.media[0].key)
    if routing == "prefix":
        return Demand(suits, pick=PromptCost(request))
    if routing == "round-robin":
        return Demand(suits, pick=lambda engines: min(of_role(engines, num_missing), key=lambda engine: engine.turn))
    # Of equal loads, the one that waited longest for a request of this frontend: each frontend has another order.
    return Demand(suits, pick=lambda engines: min(of_role(engines, num_missing), key=lambda engine: (engine.load, engine.turn)))


def has_room(engine: EngineConnection, num_tokens: int) -> bool:
    """Whether an engine that decodes can go on with a sequence of so many tokens at once."""
    load = engine.reported_load
    if engine.is_for_prompts or engine.is_doubtful or load.num_waiting:
        return False
    return load.num_free_blocks * load.block_size > num_tokens + load.block_size
