"""Which machine, versions and commit a result comes from."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import psutil

_REPOSITORY = Path(__file__).parent.parent
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


def describe_commit() -> str:
    """The commit that was measured; `+` says that tracked files differed from it. Empty outside of a clone."""
    commit = _git("rev-parse", "--short=12", "HEAD")
    return commit + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")


def busy_percent(own: Iterable[psutil.Process], seconds: float = 2.0) -> dict[str, float]:
    """How busy the cores are now, as `all` and as what these processes have of it; in percent of all cores."""
    processes = list(own)
    before_s = sum(map(_cpu_s, processes))
    everything = psutil.cpu_percent(interval=seconds)
    spent_s = sum(map(_cpu_s, processes)) - before_s
    return {"all": everything, "own": 100 * spent_s / seconds / (psutil.cpu_count() or 1)}


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


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


def _git(*args: str) -> str:
    try:
        run = subprocess.run(["git", *args], cwd=_REPOSITORY, capture_output=True, text=True, timeout=_GIT_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return run.stdout.strip()
