"""Sums and copies of the ranks of one host, through memory that they share (csrc/ranks.h)."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Sequence

import torch


class RankKernels:
    """The part of the library with which ranks exchange tensors. Calls release the GIL."""

    def __init__(self, library: ctypes.CDLL) -> None:
        pointer, count = ctypes.c_void_p, ctypes.c_int64
        self._memory_bytes, self._open = library.triptych_ranks_memory_bytes, library.triptych_ranks_open
        self._memory_bytes.argtypes, self._memory_bytes.restype = [ctypes.c_int32], count
        self._open.argtypes, self._open.restype = [pointer, ctypes.c_int32, ctypes.c_int32], pointer
        self.sum, self.gather = library.triptych_ranks_sum, library.triptych_ranks_gather
        self.sum.argtypes = [pointer, pointer, count]
        self.gather.argtypes = [pointer] * 4

    def open(self, descriptor: int, rank: int, size: int) -> SharedMemory:
        """Map the memory that the ranks share.

        Args:
            descriptor: of a file without a name, empty or as another rank has enlarged it.
        """
        num_bytes = self._memory_bytes(size)
        os.ftruncate(descriptor, num_bytes)
        return SharedMemory(self, mmap.mmap(descriptor, num_bytes), rank, size)


class SharedMemory:
    """One rank's view of the memory. Each method is called by all ranks, in the same order."""

    def __init__(self, kernels: RankKernels, memory: mmap.mmap, rank: int, size: int) -> None:
        self._kernels, self._memory = kernels, memory
        #: Of the ranks, for kernels that add up within them.
        self.address: int = kernels._open(ctypes.addressof(ctypes.c_char.from_buffer(memory)), rank, size)

    def sum(self, data: torch.Tensor) -> None:
        """Replace a dense float32 tensor by the sum of all ranks', added in their order."""
        self._kernels.sum(self.address, data.data_ptr(), data.numel())

    def gather(self, data: torch.Tensor, outs: Sequence[torch.Tensor]) -> None:
        """Fill `outs`, dense tensors, with the data of each rank, of the same size."""
        sizes = (ctypes.c_int64 * len(outs))(*(out.numel() * out.element_size() for out in outs))
        addresses = (ctypes.c_void_p * len(outs))(*(out.data_ptr() for out in outs))
        self._kernels.gather(self.address, data.data_ptr(), sizes, addresses)
