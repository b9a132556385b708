"""`triptych doctor`: what of this machine would stop Triptych, or slow it down, and why."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text
from triptych.errors import StartupError
from triptych.installation import install_command
from triptych_common import __version__
from triptych_common.host.cache import cache_dir
from triptych_common.host.cores import num_usable_cores
from triptych_common.host.cpu import ISA_VARIABLE, isas_of_this_cpu
from triptych_common.host.gpus import num_nvidia_gpus
from triptych_common.host.memory import usable_memory

#: good: nothing to do. note: it works, but is slow or will matter. bad: it does not work.
Level = Literal["good", "note", "bad"]
_MARKS = {"good": "[green]✓[/]", "note": "[yellow]![/]", "bad": "[red]✗[/]"}
#: Instruction set -> what it means for speed; those that lack nothing are not here.
_SLOW_ISAS = {
    "x86-64-v4-vnni": "no bfloat16 instructions: models in bfloat16 are multiplied in float32, prompts take twice as long",
    "x86-64-v4": "no bfloat16 instructions: models in bfloat16 are multiplied in float32, prompts take twice as long",
    "x86-64-v3-vnni": "AVX2 without AVX-512: prompts take several times as long; weights in 4 or 8 bits help most here",
    "x86-64-v3": "AVX2 without AVX-512: prompts take several times as long; weights in 4 bits help most here",
}
#: Services -> a package that each of them needs.
_PACKAGES = {"gateway": "fastapi", "frontend": "llguidance", "encoder": "av", "engine": "torch"}
_PORTS = {"gateway": 8000, "gateway's gRPC": 50051, "encoder": 50052, "engine": 50053, "frontend": 50054}
_LEAST_MEMORY, _LEAST_DISK, _LEAST_FILES = 4 << 30, 3 << 30, 4096
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    level: Level
    subject: str
    what: str


def doctor(console: Console | None = None) -> bool:
    """Print what is found. Returns whether nothing is bad."""
    findings = [finding for check in CHECKS for finding in check()]
    table = Table.grid(padding=(0, 1))
    for finding in findings:
        table.add_row(_MARKS[finding.level], finding.subject, Text(finding.what))  # no markup: commands have extras in brackets
    (console or Console(highlight=False)).print(table)
    return all(finding.level != "bad" for finding in findings)


def packages() -> Iterator[Finding]:
    """Versions, and the services whose packages are not installed."""
    versions = [f"{name} {found}" for name in ("torch", "transformers", "grpcio") if (found := _version(name))]
    yield Finding("good", "versions", ", ".join([f"Triptych {__version__}", f"Python {platform.python_version()}", *versions]))
    for service, package in _PACKAGES.items():
        if not _version(package):
            command = install_command("triptych-server", service)
            yield Finding("note", service, f"cannot run here, because {package} is not installed; run: {command}")


def processor() -> Iterator[Finding]:
    """The instruction set in use, and the kernels for it."""
    name, cores = _processor_name(), num_usable_cores()
    try:
        isas = isas_of_this_cpu()
    except StartupError as error:
        yield Finding("bad", "processor", str(error))
        return
    if not isas:
        yield Finding("note", "processor", f"{name}: no kernels are made for it; plain torch computes, several times slower")
        return
    forced = f", by {ISA_VARIABLE}" if os.environ.get(ISA_VARIABLE) else ""
    slow = f"; {_SLOW_ISAS[isas[0]]}" if isas[0] in _SLOW_ISAS else ""
    yield Finding("note" if slow else "good", "processor", f"{name}, {cores} cores, {isas[0]}{forced}{slow}")
    if _version(_PACKAGES["engine"]):
        yield _kernels(isas[0])


def _kernels(isa: str) -> Finding:
    from triptych_engine.runner.cpu import kernel_build

    found = kernel_build.find(isa)
    if found is not None:
        return Finding("good", "kernels", str(found))
    compiler = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")
    if compiler is None:
        return Finding("note", "kernels", "no C++ compiler (g++, clang++, $CXX): plain torch computes, several times slower")
    return Finding("good", "kernels", f"{compiler} makes them at the first start, in about ten seconds")


def memory() -> Iterator[Finding]:
    """What is free, and whether large pages are to be had."""
    found = usable_memory()
    text = f"{found.available / 1e9:.1f} of {found.total / 1e9:.1f} GB free"
    if found.available < _LEAST_MEMORY:
        yield Finding("note", "memory", f"{text}: little more than the default model needs")
    else:
        yield Finding("good", "memory", f"{text}; a model needs 1.25 times the size of its weights, and room for its KV cache")
    if _HUGE_PAGES.is_file() and "[never]" in _HUGE_PAGES.read_text():
        yield Finding("note", "huge pages", f"{_HUGE_PAGES} says never: each token takes longer; madvise is enough")


def gpus() -> Iterator[Finding]:
    """Whether torch can use the GPUs that are there."""
    count, torch = num_nvidia_gpus(), _version("torch")
    if count and torch and torch.endswith("+cpu"):
        yield Finding("bad", "GPU", f"{count} NVIDIA GPUs, but torch {torch} cannot use them; install a CUDA build of torch")
    elif count:
        yield Finding("good", "GPU", f"{count} NVIDIA GPUs")
    else:
        yield Finding("good", "GPU", "none: the processor computes")


def disk() -> Iterator[Finding]:
    """The cache directory."""
    folder = cache_dir()
    there = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(there).free
    if not there.is_dir():
        yield Finding("bad", "disk", f"{there} is no directory; TRIPTYCH_CACHE names another one")
    elif not os.access(there, os.W_OK):
        yield Finding("bad", "disk", f"{there} cannot be written; TRIPTYCH_CACHE names another directory")
    elif free < _LEAST_DISK:
        yield Finding(
            "note", "disk", f"{free / 1e9:.1f} GB free at {folder}; models may not fit; TRIPTYCH_CACHE names another directory"
        )
    else:
        yield Finding("good", "disk", f"{free / 1e9:.0f} GB free at {folder}")


def ports() -> Iterator[Finding]:
    """Those that `triptych serve` takes by default."""
    taken = [f"{port} ({name})" for name, port in _PORTS.items() if not _is_free(port)]
    if taken:
        why = "another program has them, perhaps a `triptych serve`; --port and others choose other ones"
        yield Finding("note", "ports", f"{', '.join(taken)}: {why}")
    else:
        yield Finding("good", "ports", f"{', '.join(map(str, _PORTS.values()))} are free")


def connections() -> Iterator[Finding]:
    """How many clients can be connected at once."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)  # services raise the soft limit
    if hard != resource.RLIM_INFINITY and hard < _LEAST_FILES:
        yield Finding("note", "open files", f"at most {hard}, and each connection is one; raise the limit with ulimit -Hn")


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (packages, processor, memory, gpus, disk, ports, connections)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _processor_name() -> str:
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
