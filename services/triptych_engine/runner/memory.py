"""How large the KV cache is unless a setting determines it."""

from __future__ import annotations

import dataclasses
import gc
from dataclasses import dataclass
from functools import partial

import torch
from triptych_common.host.gpus import GPU_UTILIZATION
from triptych_common.host.memory import private_memory

from triptych_engine.runner.config import RunnerConfig
from triptych_engine.runner.verdicts import Verdicts
from triptych_engine.scheduling.cache.window_blocks import blocks_of_window

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
    #: Blocks of layers with a window, if these have blocks of their own.
    num_window_blocks: int = 0
    #: Slots for keys and values of an encoder's states.
    num_cross_slots: int = 0


def known_size(size: CacheSize, verdicts: Verdicts) -> CacheSize:
    """The size that was found before, or this one. Ranks take the smallest of each number."""
    numbers = dataclasses.asdict(size)
    return CacheSize(**{name: verdicts.of(("cache", name), partial(int, number)) for name, number in numbers.items()})


@dataclass(frozen=True, slots=True)
class CacheBytes:
    """What the parts of a cache take, in bytes."""

    #: A block, without the layers that have blocks of their own.
    block: int
    #: The recurrent states of a sequence.
    state: int = 0
    #: A block of the layers with a window, if these have blocks of their own.
    window_block: int = 0
    #: Tokens that these layers attend to.
    window: int = 0
    #: The keys and values of the encoder's states of a sequence.
    cross: int = 0

    def most(self, config: RunnerConfig) -> int:
        """More than this is never of use."""
        num_blocks = config.max_num_seqs * -(-config.max_model_len // config.block_size)
        states = config.max_num_seqs * _STATES_PER_SEQUENCE * self.state
        cross = config.max_num_seqs * self.cross
        return num_blocks * self.block + states + cross + self._most_window_blocks(config) * self.window_block

    def divide(self, config: RunnerConfig, size: int) -> CacheSize:
        """What a cache of this size holds.

        Up to half of it are recurrent states. Up to three quarters of what would be blocks of all layers are blocks of a window:
        with fewer, short sequences would wait for them.
        """
        num_states = 0
        if self.state:
            for_states = max(size // 2, size - self.most(config) + config.max_num_seqs * _STATES_PER_SEQUENCE * self.state)
            num_states = min(for_states // self.state, config.max_num_seqs * _STATES_PER_SEQUENCE)
        left = size - num_states * self.state
        num_cross_slots = 0
        if self.cross:
            # Each sequence has one, beside blocks for its longest output.
            longest = -(-config.max_model_len // config.block_size) * self.block
            num_cross_slots = min(left // (self.cross + longest), config.max_num_seqs)
            left -= num_cross_slots * self.cross
        num_window_blocks = 0
        if self.window_block:
            num_window_blocks = min(self._most_window_blocks(config), 3 * left // (4 * (self.block + self.window_block)))
            if num_window_blocks < self.least_window_blocks(config):
                return self.joined().divide(config, size)
        num_blocks = (left - num_window_blocks * self.window_block) // self.block
        return CacheSize(num_blocks, num_states, num_window_blocks, num_cross_slots)

    def joined(self) -> CacheBytes:
        """The same with common blocks for all layers."""
        return dataclasses.replace(self, block=self.block + self.window_block, window_block=0)

    def _most_window_blocks(self, config: RunnerConfig) -> int:
        """Of use: the windows of all sequences, as many of earlier ones, and the longest steps."""
        each = blocks_of_window(self.window, 1, config.block_size)
        return 2 * config.max_num_seqs * each + self.least_window_blocks(config)

    def least_window_blocks(self, config: RunnerConfig) -> int:
        """For the longest prompt that two steps at once compute, and some sequences beside it: with fewer these would wait."""
        most_tokens = min(2 * config.max_num_batched_tokens, config.max_model_len)
        longest = blocks_of_window(self.window, most_tokens, config.block_size)
        return longest + min(config.max_num_seqs, _LEAST_WINDOWS) * blocks_of_window(self.window, 1, config.block_size)


#: Slots for states that are of use, for each sequence that may run: its own, and snapshots of what it and earlier ones had.
_STATES_PER_SEQUENCE = 4
#: Layers with a window have blocks of their own only where so many sequences have room for theirs.
_LEAST_WINDOWS = 16


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
