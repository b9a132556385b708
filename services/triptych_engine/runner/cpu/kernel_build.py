"""Builds and finds the CPU kernels (csrc/).

They compile in seconds, and one build works with all versions of Python and torch. OpenMP symbols stay unresolved on purpose: they
bind to the runtime that torch has loaded, so both share one thread pool. The library is built once, for the best instruction set
of this CPU, and kept in the cache directory. Released wheels and container images contain prebuilt libraries for all instruction
sets (`python -m triptych_engine.runner.cpu.kernel_build DIR`): wheels beside this module, images in $TRIPTYCH_KERNEL_DIR.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from triptych_common.host.cache import cache_dir
from triptych_common.host.cores import num_usable_cores
from triptych_common.host.cpu import isas

log = logging.getLogger(__name__)
_DIGEST_BYTES = 32
_CSRC, _PREBUILT = Path(__file__).parent / "csrc", Path(__file__).parent / "prebuilt"
_SOURCES = sorted(path for path in _CSRC.rglob("*") if path.suffix in (".cpp", ".h"))
#: Nobody replaces functions of the library. Without -fno-semantic-interposition GCC reckons with it, and does not inline them all.
_FLAGS = (
    *("-O3", "-std=c++17", "-fPIC", "-fno-semantic-interposition"),
    *("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-Wno-psabi"),
)
#: Flags of single files, which override the common flags.
_FILE_FLAGS = dict.fromkeys(("linear_quant.cpp", "quant_pack.cpp"), ("-ffp-contract=off",))


#: Instruction set -> its compiler flags.
_ISA_FLAGS = {
    "x86-64-v4-amx": ("-march=x86-64-v4", "-mavx512vnni", "-mavx512bf16", "-mamx-tile", "-mamx-bf16"),
    "x86-64-v4-bf16": ("-march=x86-64-v4", "-mavx512vnni", "-mavx512bf16"),
    "x86-64-v4-vnni": ("-march=x86-64-v4", "-mavx512vnni"),
    "x86-64-v4": ("-march=x86-64-v4",),
    "x86-64-v3-vnni": ("-march=x86-64-v3", "-mavxvnni"),
    "x86-64-v3": ("-march=x86-64-v3",),
    "armv8-a": ("-march=armv8-a",),
}


def _file_name(isa: str, extra_flags: tuple[str, ...] = ()) -> str:
    flags = f"{_FLAGS} {_ISA_FLAGS[isa]} {extra_flags} {_FILE_FLAGS}"
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in _SOURCES) + flags.encode()).hexdigest()[:16]
    return f"triptych-cpu-{isa}-{digest}.so"


def find(isa: str, extra_flags: tuple[str, ...] = ()) -> Path | None:
    """The library for an instruction set, prebuilt or built earlier; None if there is none. extra_flags as in `build`."""
    prebuilt = os.environ.get("TRIPTYCH_KERNEL_DIR")
    for folder in (*([Path(prebuilt)] if prebuilt else []), _PREBUILT, cache_dir() / "kernels"):
        path = folder / _file_name(isa, extra_flags)
        if path.is_file():
            if _is_whole(path.read_bytes()):
                return path
            log.warning("%s is damaged and is not used", path)
    return None


def _is_whole(library: bytes) -> bool:
    """Whether the library ends with its own checksum. To load one that was cut off would end the process with a bus error."""
    return hashlib.sha256(library[:-_DIGEST_BYTES]).digest() == library[-_DIGEST_BYTES:]


def build(isa: str, folder: Path, extra_flags: tuple[str, ...] = ()) -> Path:
    """Compile the kernels for an instruction set into a folder. A process that wants the same at the same time waits, and compiles
    nothing.

    Args:
        extra_flags: compiler flags. `-DTRIPTYCH_EMULATE_BF16=` emulates instructions that this CPU lacks, for tests: see
            bf16_instructions.h.

    Raises:
        OSError: there is no compiler, it failed, or the folder cannot be written.
    """
    compiler = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")
    if compiler is None:
        raise FileNotFoundError("no C++ compiler found (g++, clang++ or $CXX)")
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / _file_name(isa, extra_flags)
    before = _written_at(target)
    with _alone_in(folder):
        if _written_at(target) == before:
            _compile(compiler, isa, extra_flags, target)
    return target


def _compile(compiler: str, isa: str, extra_flags: tuple[str, ...], target: Path) -> None:
    log.info("building the CPU kernels for %s, once for this machine; this takes a minute or two", isa)
    with tempfile.TemporaryDirectory(dir=target.parent) as tmp:
        objects = {source: str(Path(tmp, source.stem + ".o")) for source in _SOURCES if source.suffix == ".cpp"}
        flags = (*_FLAGS, *_ISA_FLAGS[isa], *extra_flags)
        commands = [
            [compiler, *flags, *_FILE_FLAGS.get(source.name, ()), "-I", str(_CSRC), "-fopenmp", "-c", str(source), "-o", made]
            for source, made in objects.items()
        ]
        with ThreadPoolExecutor(num_usable_cores()) as pool:  # the very first start waits for this
            list(pool.map(_run, commands))
        library = Path(tmp, target.name)
        _run([compiler, "-shared", *objects.values(), "-o", str(library)])  # without -fopenmp: torch's runtime is used
        content = library.read_bytes()
        library.write_bytes(content + hashlib.sha256(content).digest())  # a loader ignores what follows the sections
        library.replace(target)
    log.info("built the CPU kernels for %s", isa)


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Wait while another process builds in this folder. Where the file system has no locks, it does not wait."""
    lock = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                log.info("waiting for another process that builds CPU kernels")
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _written_at(path: Path) -> int | None:
    """When a file was written, in nanoseconds."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return None


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{command[0]} failed: {(done.stderr.strip().splitlines() or [f'exit {done.returncode}'])[-1]}")


if __name__ == "__main__":
    for level in isas():
        print(build(level, Path(sys.argv[1])))
