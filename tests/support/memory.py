"""Measures the peak memory of this process."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass
class Peak:
    """Resident memory beyond that at the start, in bytes. Set when the block ends."""

    num_bytes: int = 0


@contextlib.contextmanager
def peak_memory() -> Iterator[Peak]:
    """Measure the peak of resident memory of all threads within the block. Linux only: the kernel records the peak."""
    _CLEAR.write_text("5")  # resets the recorded peak
    peak, before = Peak(), _bytes("VmRSS")
    yield peak
    peak.num_bytes = _bytes("VmHWM") - before


def _bytes(name: str) -> int:
    (kib,) = re.findall(rf"^{name}:\s+(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
    return int(kib) << 10
