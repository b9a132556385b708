"""How much memory this process takes at most while something runs."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass
class Peak:
    """Bytes of resident memory beyond what there was at the start; known when the block has ended."""

    num_bytes: int = 0


@contextlib.contextmanager
def peak_memory() -> Iterator[Peak]:
    """Measure the peak of resident memory within the block, of all threads. Linux only: the kernel keeps the record."""
    _CLEAR.write_text("5")  # begins the record anew
    peak, before = Peak(), _bytes("VmRSS")
    yield peak
    peak.num_bytes = _bytes("VmHWM") - before


def _bytes(name: str) -> int:
    (kib,) = re.findall(rf"^{name}:\s+(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
    return int(kib) << 10
