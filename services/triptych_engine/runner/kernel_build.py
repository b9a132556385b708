"""Builds and finds the CPU kernels (csrc/).

They compile in seconds, and one build serves all versions of Python and torch. OpenMP symbols stay unresolved on purpose: they
bind to the runtime that torch has loaded, and both share one thread pool. The library is built for the best instruction set that
this CPU has, once, and kept in the cache directory; images carry it prebuilt for all of them
(`python -m triptych_engine.runner.kernel_build DIR`, found through TRIPTYCH_KERNEL_DIR).
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from triptych_common.cores import num_usable_cores
from triptych_common.model_store import cache_dir

log = logging.getLogger(__name__)
_SOURCES = sorted((Path(__file__).parent / "csrc").iterdir())
_FLAGS = ("-O3", "-std=c++17", "-fPIC", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-Wno-psabi")
#: Flags of single files, which override those of all.
_FILE_FLAGS = {"linear_int8.cpp": ("-ffp-contract=off",)}


@dataclass(frozen=True)
class Level:
    """An instruction set that the kernels are built for."""

    compiler_flags: tuple[str, ...]
    #: As /proc/cpuinfo names them: those that tell the levels apart.
    cpu_flags: frozenset[str] = frozenset()


_AVX512 = frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})
#: Best first.
_X86_LEVELS = {
    "x86-64-v4-amx": Level(
        ("-march=x86-64-v4", "-mavx512vnni", "-mavx512bf16", "-mamx-tile", "-mamx-bf16"),
        _AVX512 | {"avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16"},
    ),
    "x86-64-v4-bf16": Level(("-march=x86-64-v4", "-mavx512vnni", "-mavx512bf16"), _AVX512 | {"avx512_vnni", "avx512_bf16"}),
    "x86-64-v4-vnni": Level(("-march=x86-64-v4", "-mavx512vnni"), _AVX512 | {"avx512_vnni"}),
    "x86-64-v4": Level(("-march=x86-64-v4",), _AVX512),
    "x86-64-v3": Level(("-march=x86-64-v3",), frozenset({"avx2", "fma", "bmi2", "f16c"})),
    "x86-64-v2": Level(("-march=x86-64-v2",), frozenset({"sse4_2", "ssse3"})),
    "x86-64": Level(("-march=x86-64",)),
}
_ARM_LEVELS = {"armv8-a": Level(("-march=armv8-a",))}


def _levels() -> dict[str, Level]:
    return {"x86_64": _X86_LEVELS, "aarch64": _ARM_LEVELS, "arm64": _ARM_LEVELS}.get(platform.machine(), {})


def isas() -> list[str]:
    """The levels that the kernels are built for on this kind of machine, best first; none where they were never tried."""
    return list(_levels())


def isas_of_this_cpu() -> list[str]:
    """Those of `isas` that this CPU can run, best first."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    flags = next((set(line.split(":", 1)[1].split()) for line in lines if line.startswith("flags")), set())
    return [isa for isa, level in _levels().items() if level.cpu_flags <= flags]


def _file_name(isa: str, extra_flags: tuple[str, ...] = ()) -> str:
    flags = f"{_FLAGS} {_levels()[isa].compiler_flags} {extra_flags} {_FILE_FLAGS}"
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in _SOURCES) + flags.encode()).hexdigest()[:16]
    return f"triptych-cpu-{isa}-{digest}.so"


def find(isa: str, extra_flags: tuple[str, ...] = ()) -> Path | None:
    """The library for an instruction set, prebuilt or built earlier; None where there is none. extra_flags as in `build`."""
    prebuilt = os.environ.get("TRIPTYCH_KERNEL_DIR")
    for folder in (Path(prebuilt) if prebuilt else None, cache_dir() / "kernels"):
        if folder is not None and (folder / _file_name(isa, extra_flags)).is_file():
            return folder / _file_name(isa, extra_flags)
    return None


def build(isa: str, folder: Path, extra_flags: tuple[str, ...] = ()) -> Path:
    """Compile the kernels for an instruction set into a folder; safe against another process doing the same.

    Args:
        extra_flags: of the compiler. `-DTRIPTYCH_EMULATE_BF16=` makes instructions that this CPU lacks testable: see
            bf16_instructions.h.

    Raises:
        OSError: there is no compiler, it failed, or the folder cannot be written.
    """
    compiler = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")
    if compiler is None:
        raise FileNotFoundError("no C++ compiler found (g++, clang++ or $CXX)")
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / _file_name(isa, extra_flags)
    with tempfile.TemporaryDirectory(dir=folder) as tmp:
        objects = {source: str(Path(tmp, source.stem + ".o")) for source in _SOURCES if source.suffix == ".cpp"}
        flags = (*_FLAGS, *_levels()[isa].compiler_flags, *extra_flags)
        commands = [
            [compiler, *flags, *_FILE_FLAGS.get(source.name, ()), "-fopenmp", "-c", str(source), "-o", made]
            for source, made in objects.items()
        ]
        with ThreadPoolExecutor(num_usable_cores()) as pool:  # the first start of all waits for this
            list(pool.map(_run, commands))
        library = Path(tmp, target.name)
        _run([compiler, "-shared", *objects.values(), "-o", str(library)])  # without -fopenmp: torch's runtime is used
        library.replace(target)
    log.info("built the CPU kernels for %s", isa)
    return target


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{command[0]} failed: {(done.stderr.strip().splitlines() or [f'exit {done.returncode}'])[-1]}")


if __name__ == "__main__":
    for level in isas():
        print(build(level, Path(sys.argv[1])))
