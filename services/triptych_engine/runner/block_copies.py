"""Copies blocks between the KV cache and the host's memory."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch

from triptych_engine.kv_offload.host_memory import HostMemory
from triptych_engine.runner.cpu.huge_pages import Prefault
from triptych_engine.runner.place import Place


def bytes_of_block(parts: Sequence[torch.Tensor]) -> int:
    """Size of a block.

    Args:
        parts: see `AttentionBackend.blocks`.
    """
    return sum(part[0].nbytes for part in parts)


def layout_of(name: str, parts: Sequence[torch.Tensor]) -> str:
    """What the bytes of a block mean: equal for engines that can use each other's."""
    shapes = ";".join(f"{part.dtype}{list(part.shape[1:])}" for part in parts)
    return f"{name}:{hashlib.sha256(shapes.encode()).hexdigest()[:16]}"


class HostBlocks:
    """The slots of this process' part of the host's memory.

    Args:
        parts: the memory of the KV cache, as of `AttentionBackend.blocks`.
    """

    def __init__(self, memory: HostMemory, place: Place, parts: Sequence[torch.Tensor]) -> None:
        # Whole words are copied several times as fast as bytes, and by numpy twice as fast as by torch.
        word = torch.int64 if all(part[0].nbytes % 8 == 0 for part in parts) else torch.uint8
        self._parts = [part.flatten(1).view(word) for part in parts]
        sizes = [part.shape[1] for part in self._parts]
        words = torch.frombuffer(memory.map_part(place.rank, place.size), dtype=word)
        num_slots = len(words) // sum(sizes)
        self._slots = words[: num_slots * sum(sizes)].view(num_slots, sum(sizes))
        #: The share of each part.
        self._columns = [column.numpy() for column in self._slots.split(sizes, dim=1)]
        self._prefault: Prefault | None = None

    def prefault(self) -> None:
        """Touch the memory in the background. A page's first use takes many times as long as copying it."""
        self.stop_prefault()
        self._prefault = Prefault([self._slots], "memory for evicted blocks")

    def stop_prefault(self) -> None:
        """Returns when the memory is no longer touched."""
        if self._prefault is not None:
            self._prefault.stop()
            self._prefault = None

    def store(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy blocks to slots, given as pairs. Waits for the device."""
        blocks, slots = np.array(copies).T
        for part, column in zip(self._parts, self._columns, strict=True):
            if part.is_cpu:
                column[slots] = part.numpy()[blocks]
            else:
                column[slots] = part[torch.from_numpy(blocks).to(part.device)].cpu().numpy()

    def load(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy slots to blocks, given as pairs of a block and a slot."""
        blocks, slots = np.array(copies).T
        for part, column in zip(self._parts, self._columns, strict=True):
            if part.is_cpu:
                part.numpy()[blocks] = column[slots]
            else:
                part[torch.from_numpy(blocks).to(part.device)] = torch.from_numpy(column[slots]).to(part.device)
