"""Installs torch into this Python's environment: `python tools/install_torch.py [pip's options] 'torch>=2.11,<2.14'`.

On Linux, pip's default index has the CUDA build, which is several gigabytes large. Where no NVIDIA GPU is visible, this program
takes the CPU build from PyTorch's own index. If a variable or a configuration file tells pip where to look, pip looks there.
The program needs nothing but pip, because it runs before anything else is installed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

#: PyTorch's index of CPU builds, as its own installation guide names it.
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
#: pip's settings that say where packages are.
_SOURCES = {"index-url", "extra-index-url", "find-links", "no-index"}


def has_nvidia_gpu() -> bool:
    """Whether this machine shows an NVIDIA GPU."""
    return shutil.which("nvidia-smi") is not None or Path("/dev/nvidia0").exists()


def configured_sources(pip: Sequence[str] = PIP) -> set[str]:
    """The settings by which the user told pip where packages are: in its files, or in variables such as PIP_INDEX_URL."""
    lines = subprocess.run([*pip, "config", "list"], check=True, capture_output=True, text=True).stdout.splitlines()
    # Each line is `global.index-url='...'`, or `:env:.index-url='...'`.
    return {line.partition("=")[0].rpartition(".")[2] for line in lines} & _SOURCES


def install(arguments: Sequence[str], cpu_index: str | None, pip: Sequence[str] = PIP) -> int:
    """Run pip, at first with the index of CPU builds alone.

    Args:
        arguments: of `pip install`.
        cpu_index: address of the index; None asks pip's own sources at once.

    Returns:
        the exit status of pip.
    """
    if cpu_index is not None:
        # What torch depends on comes later, from pip's own sources: the index has old versions of it.
        only = ["--index-url", cpu_index, "--no-deps", "--retries", "1"]
        attempt = subprocess.run([*pip, "install", *only, *arguments], capture_output=True, text=True)
        if attempt.returncode == 0:
            return 0
        print(f"no CPU build of torch from {cpu_index}; taking what pip's default index has", file=sys.stderr)
    return subprocess.run([*pip, "install", *arguments]).returncode


def main() -> int:
    wants_cpu_build = sys.platform == "linux" and not has_nvidia_gpu() and not configured_sources()
    return install(sys.argv[1:], CPU_INDEX if wants_cpu_build else None)


if __name__ == "__main__":
    sys.exit(main())
