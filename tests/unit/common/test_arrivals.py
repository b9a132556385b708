"""Arrivals: they count, and fade."""

from __future__ import annotations

import math

import pytest
from triptych_common.arrivals import Arrivals


def test_arrivals_fade() -> None:
    now_s = 100.0
    arrivals = Arrivals(lambda: now_s)
    assert arrivals.num_recent == 0
    arrivals.add()
    arrivals.add(2)
    assert arrivals.num_recent == 3
    now_s += 10
    assert arrivals.num_recent == pytest.approx(3 / math.e)
    arrivals.add()
    assert arrivals.num_recent == pytest.approx(1 + 3 / math.e)
    arrivals.set(5)
    now_s += 1000
    assert arrivals.num_recent == pytest.approx(0)
