"""Memory on the host for blocks of the KV cache, which an engine and the workers that compute for it share."""

from __future__ import annotations

import mmap
import os
import tempfile
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostMemory:
    """A file without a name, in memory. It lives as long as a process has it open; children inherit the descriptor.

    It has a part for each rank. A rank's part is divided into slots of the size of its share of a block. Slot i of all ranks
    together holds one block.
    """

    descriptor: int
    num_bytes: int

    @classmethod
    def create(cls, num_bytes: int) -> HostMemory:
        """Reserve addresses for so many bytes. Pages take memory when they are first written."""
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("triptych-kv")
        else:
            with tempfile.TemporaryFile() as file:
                descriptor = os.dup(file.fileno())
        os.ftruncate(descriptor, num_bytes)
        return cls(descriptor, num_bytes)

    def part_bytes(self, num_ranks: int) -> int:
        """Size of a rank's part: whole pages."""
        return self.num_bytes // num_ranks // mmap.PAGESIZE * mmap.PAGESIZE

    def map_part(self, rank: int, num_ranks: int) -> mmap.mmap:
        """The part of a rank, to read and write."""
        size = self.part_bytes(num_ranks)
        return mmap.mmap(self.descriptor, size, offset=rank * size)

    def close(self) -> None:
        """Give up the descriptor. Mappings stay."""
        os.close(self.descriptor)
