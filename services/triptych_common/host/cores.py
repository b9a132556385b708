"""The number of usable cores, and how the processes on one machine share them."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

import psutil

#: Iterations for which a thread of GNU's OpenMP spins at a barrier before it sleeps, about 200 microseconds. With a quarter of this
#: value, a gateway and a frontend on the same cores cost the engine a tenth of its tokens. With this value they cost nothing.
_SPIN_COUNT = "4000"
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


def limit_openmp_spinning() -> None:
    """Let OpenMP's threads spin only briefly at a barrier and then sleep, unless the environment says otherwise.

    A step has hundreds of barriers. By default threads spin there for milliseconds. When another process computes on the same
    cores, the thread that the others wait for has often lost its core to that process, and the spinning threads keep their cores
    from both. A step of 20 ms took 180 ms beside one busy process. With this setting it takes
    about 42 ms, and 20.6 ms without the other process.

    Call it before torch is imported: the runtime reads the setting once.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", _SPIN_COUNT)
