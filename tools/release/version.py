"""The version of everything that is released. `__version__` of the Python client is the one to read; the other places repeat it.

`python -m tools.release.version` prints it, `... --check` finds places that differ, `... 0.2.0` writes all of them.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

#: File -> what stands before and after each version in it. The first place is the one to read.
_PLACES = {
    "clients/python/triptych/__init__.py": [('__version__ = "', '"')],
    "clients/python/pyproject.toml": [('\nversion = "', '"')],
    "clients/typescript/package.json": [('"name": "@triptych-ai/triptych",\n  "version": "', '"')],
    "clients/typescript/package-lock.json": [
        (f'"name": "@triptych-ai/triptych",\n{indent}"version": "', '"') for indent in ("  ", "      ")
    ],
    "helm/triptych/Chart.yaml": [("\nversion: ", "\n"), ("\nappVersion: ", "\n")],
    "pyproject.toml": [('\nversion = "', '"'), ('"triptych==', '"')],
}
#: A release, or one before it: 1.2.3, 1.2.3-rc.1. The same text must be a version for npm and Helm (SemVer) and for pip (PEP 440).
_VERSION = re.compile(r"\d+\.\d+\.\d+(-(alpha|beta|rc)\.\d+)?")


def versions(root: Path) -> dict[str, list[str]]:
    """File -> the versions in it.

    Raises:
        ValueError: a file lacks a version.
    """
    return {name: [_match(root / name, *place)[2] for place in places] for name, places in _PLACES.items()}


def current_version(root: Path) -> str:
    """The version to read."""
    return versions(root)[next(iter(_PLACES))][0]


def differing(root: Path) -> list[str]:
    """A line for each file that has another version than the first."""
    expected = current_version(root)
    return [
        f"{name} has {', '.join(some)} instead of {expected}" for name, some in versions(root).items() if set(some) != {expected}
    ]


def write_version(root: Path, version: str) -> None:
    """Write a version to all places.

    Raises:
        ValueError: it is not a version, or a file lacks one.
    """
    if not _VERSION.fullmatch(version):
        raise ValueError(f"{version!r} is not a version such as 1.2.3 or 1.2.3-rc.1")
    for name, places in _PLACES.items():
        for place in places:
            before, after, _ = _match(root / name, *place)
            (root / name).write_text(before + version + after, encoding="utf-8")


def _match(path: Path, opening: str, closing: str) -> tuple[str, str, str]:
    """The text before the version, the text after it, the version."""
    text = path.read_text(encoding="utf-8")
    found = re.search(f"{re.escape(opening)}([^{re.escape(closing)}]+){re.escape(closing)}", text)
    if found is None:
        raise ValueError(f"{path} has no version after {opening.strip()!r}")
    return text[: found.start(1)], text[found.end(1) :], found[1]


def main(arguments: list[str]) -> int:
    root = Path()
    if arguments == ["--check"]:
        lines = differing(root)
        print(*lines, sep="\n", end="\n" if lines else "")
        return 1 if lines else 0
    try:
        for version in arguments:
            write_version(root, version)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    print(current_version(root))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
