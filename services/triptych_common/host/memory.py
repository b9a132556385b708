"""How this process takes memory from the system, and gives it back."""

from __future__ import annotations

import contextlib
import ctypes

_M_MMAP_THRESHOLD = -3
_LARGE_BYTES = 1 << 20


def return_large_blocks() -> None:
    """Give blocks of 1 MiB and more back to the system as soon as they are freed, with glibc; elsewhere nothing changes.

    glibc does so too at first, but raises its threshold to the size of each large block that is freed. From then on blocks of that
    size stay with the process, which after a burst of 10 MB bodies has hundreds of megabytes that nobody uses.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
