"""Memory on the host for blocks of the KV cache, which an engine and the workers that compute for it share."""

from __future__ import annotations

import mmap
import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field

_LOCATION = re.compile(r"/proc/\d+/fd/\d+")


@dataclass(frozen=True, slots=True)
class HostMemory:
    """A file without a name, in memory. It lives as long as a process has it open; children inherit the descriptor.

    It has a part for each rank. A rank's part is divided into slots of the size of its share of a block. Slot i of all ranks
    together holds one block.
    """

    descriptor: int
    num_bytes: int
    #: Of this process. Who uses the memory shares them: what one has touched, the others need not.
    _maps: dict[tuple[int, int, int], mmap.mmap] = field(default_factory=dict, repr=False, compare=False)

    def __reduce__(self) -> tuple[type[HostMemory], tuple[int, int]]:
        return HostMemory, (self.descriptor, self.num_bytes)

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

    @classmethod
    def open(cls, path: str, device: int, inode: int, num_bytes: int) -> HostMemory:
        """The memory of another process on this host, to be read; see `location`. Raises OSError."""
        if not _LOCATION.fullmatch(path):  # whoever names it may name anything
            raise FileNotFoundError(f"{path} is no file of a process")
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        found = os.fstat(descriptor)
        if (found.st_dev, found.st_ino, found.st_size) != (device, inode, num_bytes):
            os.close(descriptor)
            raise FileNotFoundError(f"{path} is another file")
        return cls(descriptor, num_bytes)

    @property
    def location(self) -> tuple[str, int, int]:
        """Where other processes of this user find it: path, device and inode."""
        found = os.fstat(self.descriptor)
        return f"/proc/{os.getpid()}/fd/{self.descriptor}", found.st_dev, found.st_ino

    def part_bytes(self, num_ranks: int) -> int:
        """Size of a rank's part: whole pages."""
        return self.num_bytes // num_ranks // mmap.PAGESIZE * mmap.PAGESIZE

    def map_part(self, rank: int, num_ranks: int, access: int = mmap.ACCESS_WRITE) -> mmap.mmap:
        """The part of a rank, the same mapping each time."""
        key = rank, num_ranks, access
        if key not in self._maps:
            size = self.part_bytes(num_ranks)
            self._maps[key] = mmap.mmap(self.descriptor, size, offset=rank * size, access=access)
        return self._maps[key]

    def close(self) -> None:
        """Give up the descriptor. Mappings stay."""
        os.close(self.descriptor)


class Slots:
    """The slots of all ranks.

    Args:
        block_bytes: size of a block, of each rank.
        access: how they are mapped.
    """

    def __init__(self, memory: HostMemory, block_bytes: Sequence[int], access: int = mmap.ACCESS_WRITE) -> None:
        self.memory, self.block_bytes = memory, tuple(block_bytes)
        num_ranks = len(self.block_bytes)
        self.num_slots = memory.part_bytes(num_ranks) // max(self.block_bytes)
        self._maps = [memory.map_part(rank, num_ranks, access) for rank in range(num_ranks)]
        self._parts = [memoryview(part) for part in self._maps]

    def give_back(self) -> None:
        """Forget the bytes of all slots, so that they take no memory."""
        if hasattr(mmap, "MADV_REMOVE"):
            for part in self._maps:
                part.madvise(mmap.MADV_REMOVE)

    def bytes_of(self, slot: int) -> list[memoryview]:
        """The bytes of a slot, by rank."""
        return [part[slot * size : (slot + 1) * size] for part, size in zip(self._parts, self.block_bytes, strict=True)]
