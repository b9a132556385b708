"""How many cores there are, and how engine and encoder share those of one machine."""

from __future__ import annotations

import math
import os
from pathlib import Path

import psutil

_CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def num_usable_cores() -> int:
    """Cores that this process may use: of its affinity, where the system has one, and within its cgroup's quota."""
    process = psutil.Process()
    cores = len(process.cpu_affinity() or []) if hasattr(process, "cpu_affinity") else os.cpu_count()
    if _CGROUP_QUOTA.is_file():
        limit, period = _CGROUP_QUOTA.read_text().split()
        if limit != "max":
            cores = min(cores or 1, math.ceil(int(limit) / int(period)))
    return max(1, cores or 1)


def encoder_share(num_cores: int) -> int:
    """Cores that an encoder computes on by default, of so many: one of up to four, else half."""
    return 1 if num_cores <= 4 else num_cores // 2
