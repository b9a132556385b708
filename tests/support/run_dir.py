"""Directories that last as long as the test run."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
from pathlib import Path

import psutil

_PREFIX = "triptych-test-"


def run_dir(name: str) -> Path:
    """A new directory of this name, removed when the run ends, or by the next run if this one is killed."""
    path = _root() / name
    path.mkdir()
    return path


@functools.cache
def _root() -> Path:
    """The directory of this process."""
    places, own = Path(tempfile.gettempdir()), os.getpid()
    for path in places.glob(f"{_PREFIX}*"):
        pid = path.name.removeprefix(_PREFIX)
        if pid.isdigit() and (int(pid) == own or not psutil.pid_exists(int(pid))):
            shutil.rmtree(path, ignore_errors=True)
    root = places / f"{_PREFIX}{own}"
    root.mkdir(mode=0o700)
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    return root
