"""Which machine, versions and commit a result comes from, and how busy the machine was."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import psutil

REPOSITORY = Path(__file__).parents[2]
_PACKAGES = ("torch", "transformers", "tokenizers", "grpcio", "fastapi", "uvicorn", "numpy")
_GIT_TIMEOUT_S = 10.0


def describe_machine() -> dict[str, object]:
    """Processor, memory and system, without the machine's name."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "system": f"{platform.system()} {platform.machine()}",
    }


def describe_versions() -> dict[str, str]:
    """Python and the libraries that matter for speed."""
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in _PACKAGES}}


def describe_commit(checkout: Path = REPOSITORY) -> str:
    """The commit of a checkout; `+` says that tracked files differed from it. Empty outside of a clone."""
    commit = _git(checkout, "rev-parse", "--short=12", "HEAD")
    return commit + ("+" if _git(checkout, "status", "--porcelain", "--untracked-files=no") else "")


class BusyMeter:
    """How busy the cores are from now on.

    Args:
        own: processes whose share is told apart; they must live until it is read.
    """

    def __init__(self, own: Iterable[psutil.Process] = ()) -> None:
        self._own = list(own)
        self._started_s, self._before = time.perf_counter(), self._spent_s()

    def percent(self) -> dict[str, float]:
        """`all`, `own`, and `others`, which is the rest of all; in percent of all cores."""
        available_s = (time.perf_counter() - self._started_s) * (psutil.cpu_count() or 1)
        busy, own = (100 * (after - before) / available_s for after, before in zip(self._spent_s(), self._before, strict=True))
        # Both are told in hundredths of a second.
        return {"all": min(max(0.0, busy), 100.0), "own": own, "others": max(0.0, busy - own)}

    def _spent_s(self) -> tuple[float, float]:
        times = psutil.cpu_times()
        waiting = times.idle + getattr(times, "iowait", 0.0)
        # Guests' time is in the user's already.
        guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
        return sum(times) - waiting - guests, sum(map(cpu_s, self._own))


def cpu_s(process: psutil.Process) -> float:
    """User and system time of the process so far, in seconds."""
    times = process.cpu_times()
    return float(times.user + times.system)


def _cpu_model() -> str:
    """The name that the system gives to the processor, and the instruction sets that decide about speed."""
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return platform.processor()
    fields = dict(line.split(":", 1) for line in cpuinfo.read_text(encoding="utf-8").splitlines() if ":" in line)
    fields = {name.strip(): value.strip() for name, value in fields.items()}
    flags = fields.get("flags", "").split()
    extensions = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in flags]
    model = " ".join(fields.get("model name", platform.processor()).split())
    return f"{model} ({', '.join(extensions)})" if extensions else model


def _git(checkout: Path, *args: str) -> str:
    """What git prints; nothing where it fails."""
    try:
        done = subprocess.run(["git", *args], cwd=checkout, capture_output=True, text=True, timeout=_GIT_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
