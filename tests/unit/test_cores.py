"""How OpenMP's threads wait, as far as the environment leaves it open."""

from __future__ import annotations

import os

import pytest
from triptych_common.cores import bear_company


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.setenv(name, "")  # so that the end of the test puts back what was there
        monkeypatch.delenv(name)


def test_threads_wait_awake_but_for_a_moment() -> None:
    bear_company()
    assert 0 < int(os.environ["GOMP_SPINCOUNT"]) <= 10_000


@pytest.mark.parametrize(("name", "value"), [("GOMP_SPINCOUNT", "300000"), ("OMP_WAIT_POLICY", "active")])
def test_what_the_environment_says_holds(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    bear_company()
    assert os.environ[name] == value
    assert os.environ.get("GOMP_SPINCOUNT") == (value if name == "GOMP_SPINCOUNT" else None)
