"""How large the KV cache is unless a setting determines it."""

from __future__ import annotations

import gc
from dataclasses import dataclass

import torch
from triptych_common.host.gpus import GPU_UTILIZATION
from triptych_common.host.memory import private_memory

from triptych_engine.runner.config import RunnerConfig

#: Room for a step's intermediate results on a CPU.
_WORKSPACE_BYTES = 256 << 20


def kv_cache_bytes(*, limit: int, used: int, reserved: int, most: int, utilization: float | None) -> int:
    """The size of the KV cache, in bytes; 0 if there is no room.

    Args:
        limit: bytes that the engine may take in all.
        used: what it takes without the cache, mostly weights.
        reserved: what it will need besides.
        most: more than this is never of use.
        utilization: share of `limit` that it takes in all; None takes half of what is left.
    """
    budget = (limit + used) // 2 if utilization is None else int(limit * utilization)
    return max(0, min(budget - used - reserved, most))


@dataclass(frozen=True, slots=True)
class CacheSize:
    """How much a cache holds."""

    num_blocks: int
    #: Slots for recurrent states.
    num_states: int = 0


#: Slots for states that are of use, for each sequence that may run: its own, and snapshots of what it and earlier ones had.
_STATES_PER_SEQUENCE = 4


def most_cache_bytes(config: RunnerConfig, block_bytes: int, state_bytes: int) -> int:
    """More than this is never of use."""
    num_blocks = config.max_num_seqs * -(-config.max_model_len // config.block_size)
    return num_blocks * block_bytes + config.max_num_seqs * _STATES_PER_SEQUENCE * state_bytes


def cache_size(config: RunnerConfig, size: int, block_bytes: int, state_bytes: int) -> CacheSize:
    """What a cache of this size holds, in bytes: up to half of it are recurrent states, if there are any."""
    if not state_bytes:
        return CacheSize(size // block_bytes)
    num_states = min(size // 2 // state_bytes, config.max_num_seqs * _STATES_PER_SEQUENCE)
    return CacheSize((size - num_states * state_bytes) // block_bytes, num_states)


def measured_kv_cache_bytes(config: RunnerConfig, most: int) -> int:
    """The same for this process, whose model is loaded."""
    if config.device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()  # weights that were joined into larger ones
        free, total = torch.cuda.mem_get_info(config.device)
        share = config.memory_utilization or GPU_UTILIZATION
        return kv_cache_bytes(limit=total, used=total - free, reserved=0, most=most, utilization=share)
    gc.collect()
    return kv_cache_bytes(
        limit=config.memory_limit,
        used=private_memory(),
        reserved=config.reserved_bytes + _WORKSPACE_BYTES,
        most=most,
        utilization=config.memory_utilization,
    )
