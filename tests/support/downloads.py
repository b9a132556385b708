"""Packages of other languages and of other Python environments, downloaded once and kept from run to run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest


def python_environment(directory: Path, *requirements: str) -> Path:
    """Make a virtual environment with these requirements, unless it is there. Skips the test if they cannot be downloaded.

    Returns:
        Its interpreter.
    """
    python, wanted = directory / "bin" / "python", directory / "wanted.json"
    if not _has(wanted, requirements):
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(directory)], check=True)
        command = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *requirements]
        result = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
        if result.returncode:
            pytest.skip(f"pip install {' '.join(requirements)}: {result.stderr.strip()}")
        wanted.write_text(json.dumps(requirements))
    return python


def npm_packages(directory: Path, npm: Path, *packages: str) -> Path:
    """Install npm packages into a directory, unless they are there. Skips the test if the download fails.

    Returns:
        The directory's node_modules.
    """
    directory.mkdir(parents=True, exist_ok=True)
    wanted = directory / "wanted.json"
    if not _has(wanted, packages):
        command = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", directory, *packages]
        result = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
        if result.returncode:
            pytest.skip(f"npm install {' '.join(packages)}: {result.stderr.strip()}")
        wanted.write_text(json.dumps(packages))
    return directory / "node_modules"


def _has(wanted: Path, packages: Sequence[str]) -> bool:
    return wanted.exists() and json.loads(wanted.read_text()) == list(packages)
