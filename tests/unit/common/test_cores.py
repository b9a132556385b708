"""How many cores nobody else uses."""

from __future__ import annotations

from pathlib import Path

import pytest
from triptych_common.host import cores
from triptych_common.host.cores import num_idle_cores


@pytest.mark.parametrize(("running", "num_cores", "idle"), [(1, 2, 2), (2, 2, 1), (3, 2, 0), (9, 2, 0), (0, 4, 4), (3, 16, 14)])
def test_cores_are_idle_that_nobody_else_uses(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, running: int, num_cores: int, idle: int
) -> None:
    (tmp_path / "loadavg").write_text(f"0.66 1.06 1.08 {running}/79 13494\n")
    monkeypatch.setattr(cores, "_LOAD", tmp_path / "loadavg")
    assert num_idle_cores(num_cores) == idle


@pytest.mark.parametrize(
    ("running", "idle"), [([3, 1, 1], 2), ([1, 3, 3, 1], 2), ([1, 3, 2, 3], 1), ([1, 3, 3, 3], 0), ([2, 2, 2, 1], 1)]
)
def test_what_is_seen_twice_holds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, running: list[int], idle: int) -> None:
    load, looks = tmp_path / "loadavg", iter(running)

    def next_look(seconds: float = 0.0) -> None:
        load.write_text(f"0 0 0 {next(looks)}/79 1\n")

    monkeypatch.setattr(cores, "_LOAD", load)
    monkeypatch.setattr(cores.time, "sleep", next_look)
    next_look()
    assert num_idle_cores(2) == idle


def test_none_is_idle_where_the_system_does_not_say(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cores, "_LOAD", tmp_path / "missing")
    assert num_idle_cores(8) == 0
