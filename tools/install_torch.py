"""Installs torch into this Python's environment: `python tools/install_torch.py [options] 'torch>=2.11,<2.14'`.

On Linux, pip's default index has the CUDA build, which has several gigabytes. If no NVIDIA GPU is visible, this program installs
the CPU build with `uv pip install --torch-backend cpu`, because uv knows where PyTorch keeps it. If a variable or a configuration
file tells pip where to look, pip looks there. The program needs only pip, because it runs before anything else is installed.
"""

from __future__ import annotations

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


def install(arguments: Sequence[str], wants_cpu_build: bool, pip: Sequence[str] = PIP, uv: Sequence[str] = UV) -> int:
    """Install torch.

    Args:
        arguments: arguments of `pip install`, which `uv pip install` accepts too.
        wants_cpu_build: try uv first.

    Returns:
        the exit status of pip, or 0.
    """
    if wants_cpu_build:
        # The dependencies of torch are installed later, from pip's own sources.
        options = ["--python", sys.executable, "--torch-backend", "cpu", "--no-deps"]
        steps = [[*pip, "install", "-q", "uv"], [*uv, "pip", "install", *options, *arguments]]
        if all(subprocess.run(step, capture_output=True, text=True).returncode == 0 for step in steps):
            return 0
        print("the CPU build of torch is not to be had; taking what pip's default index has", file=sys.stderr)
    return subprocess.run([*pip, "install", *arguments]).returncode


def main() -> int:
    wants_cpu_build = sys.platform == "linux" and not has_nvidia_gpu() and not configured_sources()
    return install(sys.argv[1:], wants_cpu_build)


if __name__ == "__main__":
    sys.exit(main())
