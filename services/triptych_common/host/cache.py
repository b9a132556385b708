"""The directory in which Triptych keeps what it makes once: built-in models, compiled kernels, verdicts of checks."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """$TRIPTYCH_CACHE, else ~/.cache/triptych."""
    return Path(os.environ.get("TRIPTYCH_CACHE") or Path.home() / ".cache" / "triptych")
