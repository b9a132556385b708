"""Removes from a virtual environment what no service ever reads: `python slim.py ENVIRONMENT`.

Images run this after they installed their packages. It removes nothing that a service may import: only tests, C++ headers,
command-line tools of torch, the sources from which transformers generates its models, and symbols for debuggers. Where torch is
absent, the modeling code of transformers goes too, because it imports torch.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

#: In site-packages: what torch has for those who build or test it. torch_shm_manager is the one program that torch itself starts.
_TORCH = ("torch/test", "torch/include", "torch/share", "torch/bin/[!t]*", "torch/bin/test_*")
_TRANSFORMERS = ("transformers/models/*/modular_*.py", "transformers/models/*/convert_*.py")
_MODELING = "transformers/models/*/modeling_*.py"
#: Packages whose folders `tests` are imported by nobody else.
_TESTED = ("numpy", "scipy", "sympy", "networkx", "mpmath", "fsspec", "regex", "aiohttp", "psutil")


def unused(packages: Path) -> Iterator[Path]:
    """Files and folders to remove from a site-packages directory."""
    for pattern in (*_TORCH, *_TRANSFORMERS):
        yield from packages.glob(pattern)
    if not (packages / "torch").exists():
        # The tables of models in auto/ import no torch, and configurations read them.
        yield from (path for path in packages.glob(_MODELING) if path.parent.name != "auto")
    for name in _TESTED:
        yield from (folder for folder in (packages / name).rglob("tests") if folder.is_dir())


def strippable(packages: Path) -> Iterator[Path]:
    """Extension modules. Libraries that a wheel bundles (NAME.libs) are left alone: their layout was rewritten once already."""
    for library in packages.rglob("*.so"):
        if not any(part == "torch" or part.endswith(".libs") for part in library.relative_to(packages).parts):
            yield library


def main(environment: str) -> None:
    (packages,) = Path(environment).glob("lib/python*/site-packages")
    for path in list(unused(packages)):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    subprocess.run(["strip", "--strip-unneeded", *strippable(packages)], check=True)


if __name__ == "__main__":
    main(sys.argv[1])
