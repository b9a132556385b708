"""The number of usable cores, and how the processes on one machine share them."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

import psutil

_CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_LOAD = Path("/proc/loadavg")
_LOOKS, _LOOK_INTERVAL_S = 4, 0.001


def num_usable_cores() -> int:
    """Number of cores that this process may use: its CPU affinity, where the system has one, limited by its cgroup's quota."""
    process = psutil.Process()
    cores = len(process.cpu_affinity() or []) if hasattr(process, "cpu_affinity") else os.cpu_count()
    if _CGROUP_QUOTA.is_file():
        limit, period = _CGROUP_QUOTA.read_text().split()
        if limit != "max":
            cores = min(cores or 1, math.ceil(int(limit) / int(period)))
    return max(1, cores or 1)


def num_idle_cores(num_cores: int) -> int:
    """How many of `num_cores` cores only the calling thread uses; 0 where the system does not say.

    Linux counts the running and runnable threads of the whole machine (/proc/loadavg), so the result is too low rather than too
    high in a container. Threads that only pass something on come and go within a millisecond, and threads that compute pause now
    and then. So the function samples up to four times and returns the second highest number of idle cores.
    """
    seen: list[int] = []
    while len(seen) < _LOOKS and seen.count(num_cores) < 2:
        if not _LOAD.is_file():
            return 0
        if seen:
            time.sleep(_LOOK_INTERVAL_S)
        num_running = int(_LOAD.read_text().split()[3].partition("/")[0])
        seen.append(max(0, num_cores - max(0, num_running - 1)))
    return sorted(seen)[-2]


def default_encoder_threads(num_cores: int) -> int:
    """Default number of an encoder's threads: one on up to four cores, else half of the cores."""
    return 1 if num_cores <= 4 else num_cores // 2
