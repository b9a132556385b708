"""Memory for weights and KV cache, which a step reads at many places, on huge pages of 2 MiB where the system has them.

With pages of 4 KiB, each block of the cache is on a different page. To find it, the processor must read page tables from memory; in
a virtual machine, those of guest and host. Linux gives larger pages to processes that ask for them with madvise
(`/sys/kernel/mm/transparent_hugepage/enabled`: always or madvise). On other systems, this is ordinary memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import logging
import math
import mmap
import os
import threading
import time
from collections.abc import Iterator, Sequence

import torch

log = logging.getLogger(__name__)

_PAGE = 2 << 20
#: Small tensors, of up to a quarter of this size, share regions of this size.
_REGION = 64 * _PAGE
_ALIGNMENT = 64
_HAS_ADVICE = hasattr(mmap, "MADV_HUGEPAGE")
_MADV_POPULATE_WRITE = 23  # since Linux 5.14; Python's mmap lacks it, and its madvise would hold the GIL meanwhile


class HugePages:
    """Allocates tensors with similar lifetimes: a region is freed when the last of its tensors is gone. Thread-safe."""

    def __init__(self) -> None:
        self._free = torch.empty(0, dtype=torch.uint8)
        self._lock = threading.Lock()

    def empty(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        """Like torch.empty, on the CPU. Memory that is not written to is not used, except for the rest of a page: up to 2 MiB.

        Raises:
            MemoryError: the system does not have that much memory.
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


#: A large cache is not filled at once, and the machine may need the memory for something else until then.
_MAX_PREFAULTED_BYTES = 1 << 30


def _region(num_bytes: int) -> torch.Tensor:
    """A uint8 tensor that starts at a page boundary."""
    try:
        memory = mmap.mmap(-1, num_bytes + _PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"the system does not give {num_bytes} bytes of memory: {error}") from error
    with contextlib.suppress(OSError):  # a system without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    first = -whole.data_ptr() % _PAGE
    return whole[first : first + num_bytes]


class Prefault:
    """Prefaults memory on a thread of the lowest priority, before the memory is written to.

    The first use of a page takes much longer than later uses, in particular if a hypervisor must allocate the page first. The
    content of the memory does not change. On systems that do not support this (Linux before 5.14, others), it does nothing.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], name: str = "KV cache") -> None:
        """tensors: prefaulted from the start up to 1 GiB in all, in turn, one page of each tensor at a time."""
        self._tensors = tensors  # held until the thread has ended
        self._name = name
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="prefault", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop prefaulting. Returns when the memory is no longer touched."""
        self._stopping.set()
        self._thread.join()

    def wait(self) -> None:
        """Wait until all memory is prefaulted."""
        self._thread.join()

    def _run(self) -> None:
        if not _HAS_ADVICE:
            return
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)  # only this thread
        started, libc = time.monotonic(), ctypes.CDLL(None, use_errno=True)
        libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        num_bytes = 0
        for address, size in self._pages():
            if self._stopping.is_set():
                return
            if libc.madvise(address, size, _MADV_POPULATE_WRITE):
                log.info("the %s is not prefaulted: %s", self._name, os.strerror(ctypes.get_errno()))
                return
            num_bytes += size
            if num_bytes >= _MAX_PREFAULTED_BYTES:
                break
        log.info("prefaulted %.0f MB of %s in %.1f s", num_bytes / 1e6, self._name, time.monotonic() - started)

    def _pages(self) -> Iterator[tuple[int, int]]:
        """Address and size in bytes of the pages, each of 2 MiB at most."""
        step = mmap.PAGESIZE
        spans = [(x.data_ptr() // step * step, -(-(x.data_ptr() + x.nbytes) // step) * step) for x in self._tensors if x.nbytes]
        parts = ([(first, min(_PAGE, end - first)) for first in range(begin, end, _PAGE)] for begin, end in spans)
        for turn in itertools.zip_longest(*parts):
            yield from filter(None, turn)
