"""Memory for what a step reads all over, weights and KV cache, on pages of 2 MiB where the system has them.

With pages of 4 KiB each block of the cache lies on another one, and a processor has to read tables from memory to find it, within a
virtual machine those of two systems. Linux gives larger pages to who asks (`/sys/kernel/mm/transparent_hugepage/enabled`: always or
madvise); elsewhere this is ordinary memory.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import threading

import torch

_PAGE = 2 << 20
#: Smaller tensors lie together on regions of this size.
_REGION = 16 * _PAGE
_ALIGNMENT = 64
_HAS_ADVICE = hasattr(mmap, "MADV_HUGEPAGE")


class HugePages:
    """Where tensors are made that live about as long: a region is given back when the last of its tensors is gone. May be used by
    several threads."""

    def __init__(self) -> None:
        self._free = torch.empty(0, dtype=torch.uint8)
        self._lock = threading.Lock()

    def empty(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        """Like torch.empty, on the CPU. What is not written to takes no memory, but for the rest of a page: up to 2 MiB.

        Raises:
            MemoryError: the system does not give so much.
        """
        num_bytes = math.prod(shape) * dtype.itemsize
        if not _HAS_ADVICE or num_bytes == 0:
            return torch.empty(shape, dtype=dtype)
        memory = _region(num_bytes) if num_bytes > _REGION // 4 else self._take(num_bytes)
        return memory.view(dtype).view(shape)

    def _take(self, num_bytes: int) -> torch.Tensor:
        with self._lock:
            if num_bytes > len(self._free):
                self._free = _region(_REGION)
            taken, self._free = self._free[:num_bytes], self._free[-(-num_bytes // _ALIGNMENT) * _ALIGNMENT :]
        return taken


def _region(num_bytes: int) -> torch.Tensor:
    """uint8, that begins with a page."""
    try:
        memory = mmap.mmap(-1, num_bytes + _PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"the system does not give {num_bytes} bytes of memory: {error}") from error
    with contextlib.suppress(OSError):  # a system without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    first = -whole.data_ptr() % _PAGE
    return whole[first : first + num_bytes]
