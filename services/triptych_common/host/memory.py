"""How this process allocates memory and returns it to the system."""

from __future__ import annotations

import contextlib
import ctypes

_M_MMAP_THRESHOLD = -3
_LARGE_BYTES = 1 << 20


def return_large_blocks() -> None:
    """Return blocks of 1 MiB and more to the system as soon as they are freed. This has an effect with glibc only.

    At first glibc does this by default. But it raises its threshold to the size of each large block that is freed, and then keeps
    blocks of that size. After a burst of 10 MB bodies the process would hold hundreds of megabytes of unused memory.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
