"""Engines with worker processes, of which nothing is left."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest
from support.drivers.worker_engine import Engine


@pytest.fixture
def started() -> Iterator[list[Engine]]:
    """Engines to be stopped."""
    engines: list[Engine] = []
    yield engines
    for engine in engines:
        pids = engine.executor.pids
        engine.stop()
        assert not any(psutil.pid_exists(pid) for pid in pids), "no process is left"
