"""How this process allocates memory and returns it to the system, and how much there is."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import psutil

_M_MMAP_THRESHOLD = -3
_LARGE_BYTES = 1 << 20


def return_large_blocks() -> None:
    """Return blocks of 1 MiB and more to the system as soon as they are freed. This has an effect with glibc only.

    At first glibc does this by default. But it raises its threshold to the size of each large block that is freed, and then keeps
    blocks of that size. After a burst of 10 MB bodies the process would hold hundreds of megabytes of unused memory.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)


def return_free_memory() -> None:
    """Return what was freed to the system now. This has an effect with glibc only."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def resident_memory() -> int:
    """Resident memory of this process and of those that it has started, in bytes."""
    total, process = 0, psutil.Process()
    for one in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            total += one.memory_info().rss
    return total


@dataclass(frozen=True)
class Memory:
    """Memory in bytes: what this process could have at most, and what is free of it now."""

    total: int
    available: int


def usable_memory(cgroup: Path = Path("/proc/self/cgroup"), mount: Path = Path("/sys/fs/cgroup")) -> Memory:
    """The memory of this machine, or of the tightest cgroup that this process is in, e.g. its container's.

    Args:
        cgroup: the file that names the process's groups.
        mount: where the system shows cgroups, of version 1 or 2.
    """
    machine = psutil.virtual_memory()
    memory = Memory(machine.total, machine.available)
    for directory, (limit_file, usage_file, *cached) in _groups(cgroup, mount):
        with contextlib.suppress(OSError, ValueError):
            limit = int((directory / limit_file).read_text())  # version 2 writes "max" for none
            usage = int((directory / usage_file).read_text())
            # Cached pages of files count as used, and the kernel drops them when memory is short. Files that were read twice, such
            # as weights after a restart, are active.
            stat = dict(line.split() for line in (directory / "memory.stat").read_text().splitlines())
            free = max(0, limit - max(0, usage - sum(int(stat.get(name, 0)) for name in cached)))
            memory = Memory(min(memory.total, limit), min(memory.available, free))
    return memory


def _groups(cgroup: Path, mount: Path) -> Iterator[tuple[Path, tuple[str, str, str, str]]]:
    """The directories of this process's groups with their parents, and the names in them of limit, usage and cached pages."""
    for line in cgroup.read_text().splitlines() if cgroup.is_file() else ():
        _, controllers, name = line.split(":", 2)
        if controllers == "":
            root, names = mount, ("memory.max", "memory.current", "inactive_file", "active_file")
        elif "memory" in controllers.split(","):
            root = mount / "memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "total_active_file")
        else:
            continue
        group = PurePosixPath(name.lstrip("/"))
        for part in (group, *group.parents):
            yield root / part, names


def private_memory(pid: int | None = None) -> int:
    """Bytes that a process alone holds in memory; by default this one."""
    info = psutil.Process(pid).memory_info()
    return int(info.rss - getattr(info, "shared", 0))
