"""Installs torch into this Python's environment: `python tools/install_torch.py [options] 'torch>=2.11,<2.14'`.

On Linux, pip's default index has the CUDA build, which has several gigabytes. If no NVIDIA GPU is visible, this program installs
the CPU build with `uv pip install --torch-backend cpu`, because uv knows where PyTorch keeps it. If a variable or a configuration
file tells pip where to look, pip looks there. The program needs only pip, because it runs before anything else is installed.

Two options are this program's own; all others are `pip install`'s. Container images use both:

- `--backend cpu|cu128|...` asks for this build instead of looking for a GPU. If it is not to be had, the program fails.
- `--into PYTHON` installs into the environment of that Python.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
UV = (sys.executable, "-m", "uv")
#: pip's settings for the sources of packages.
_SOURCES = {"index-url", "extra-index-url", "find-links", "no-index"}


def has_nvidia_gpu() -> bool:
    """Whether this machine has a visible NVIDIA GPU."""
    return shutil.which("nvidia-smi") is not None or Path("/dev/nvidia0").exists()


def configured_sources(pip: Sequence[str] = PIP) -> set[str]:
    """The user's pip settings for package sources: from files, or from variables such as PIP_INDEX_URL."""
    lines = subprocess.run([*pip, "config", "list"], check=True, capture_output=True, text=True).stdout.splitlines()
    # Each line is `global.index-url='...'`, or `:env:.index-url='...'`.
    return {line.partition("=")[0].rpartition(".")[2] for line in lines} & _SOURCES


def install(
    arguments: Sequence[str],
    backend: str | None,
    pip: Sequence[str] = PIP,
    uv: Sequence[str] = UV,
    into: str = sys.executable,
    is_required: bool = False,
) -> int:
    """Install torch.

    Args:
        arguments: arguments of `pip install`, which `uv pip install` accepts too.
        backend: the build to try by uv first, as its --torch-backend names it; None asks pip alone.
        into: the Python whose environment torch is installed into.
        is_required: fail if there is no such build; otherwise pip then takes what its sources have.

    Returns:
        the exit status of the last program that ran.
    """
    target = [] if into == sys.executable else ["--python", into]
    if backend is not None:
        # The dependencies of torch are installed later, from pip's own sources.
        options = ["--python", into, "--torch-backend", backend, "--no-deps"]
        steps = [[*pip, "install", "-q", "uv"], [*uv, "pip", "install", *options, *arguments]]
        for step in steps:
            done = subprocess.run(step, capture_output=True, text=True)
            if done.returncode:
                break
        else:
            return 0
        if is_required:
            print(f"the {backend} build of torch is not to be had:\n{done.stderr.strip()}", file=sys.stderr)
            return done.returncode
        print(f"the {backend.upper()} build of torch is not to be had; taking what pip's default index has", file=sys.stderr)
    return subprocess.run([*pip, *target, "install", *arguments]).returncode


def main() -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--backend")
    parser.add_argument("--into", default=sys.executable)
    own, arguments = parser.parse_known_args()
    sources = configured_sources()
    if own.backend and sources:
        print(f"pip was told where to look ({', '.join(sorted(sources))}), so torch comes from there", file=sys.stderr)
    wants_cpu_build = sys.platform == "linux" and not has_nvidia_gpu()
    backend = None if sources else own.backend or ("cpu" if wants_cpu_build else None)
    return install(arguments, backend, into=own.into, is_required=own.backend is not None)


if __name__ == "__main__":
    sys.exit(main())
