"""How many cores there are, and how those who compute on one machine share them."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

import psutil

#: Turns for which a thread of GNU's OpenMP waits awake for the others, some 200 microseconds; then it sleeps. With a quarter of it
#: gateway and frontend on the same cores cost the engine a tenth of its tokens, which with this they do not.
_SPIN_COUNT = "4000"
_CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_LOAD = Path("/proc/loadavg")
_LOOKS, _LOOK_INTERVAL_S = 4, 0.001


def num_usable_cores() -> int:
    """Cores that this process may use: of its affinity, where the system has one, and within its cgroup's quota."""
    process = psutil.Process()
    cores = len(process.cpu_affinity() or []) if hasattr(process, "cpu_affinity") else os.cpu_count()
    if _CGROUP_QUOTA.is_file():
        limit, period = _CGROUP_QUOTA.read_text().split()
        if limit != "max":
            cores = min(cores or 1, math.ceil(int(limit) / int(period)))
    return max(1, cores or 1)


def num_idle_cores(num_cores: int) -> int:
    """Of so many cores, those that nothing else than the calling thread uses; 0 where the system does not say.

    Linux counts what runs or wants to run on the whole machine (/proc/loadavg), so in a container this is rather too few. Threads
    that pass something on come and go within a millisecond, and those that compute pause now and then: what was seen twice in up to
    four looks holds.
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
    """Threads of an encoder by default: one where there are up to four cores, else half of them."""
    return 1 if num_cores <= 4 else num_cores // 2


def limit_openmp_spinning() -> None:
    """Let OpenMP's threads spin only for a moment at a barrier, then sleep, unless the environment says otherwise.

    A step has hundreds of barriers. By default threads spin there for milliseconds. When another process computes on the same
    cores, the thread that the others wait for has often lost its core to that process, and the spinning threads keep their cores
    from both. A step of 20 ms took 180 ms beside one busy process. With this it takes about 42 ms, and 20.6 ms alone.

    Call it before torch is imported: the runtime reads the setting once.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", _SPIN_COUNT)
