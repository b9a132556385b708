"""Distributions that are kept as counts."""

from __future__ import annotations

import json

import pytest
from figures import percentile
from histogram import PER_OCTAVE, SHORTEST_MS, histogram, merged, quantiles
from hypothesis import given
from hypothesis import strategies as st

TIMES_S = st.lists(st.floats(1e-4, 1e3), min_size=1, max_size=50)


@given(TIMES_S, TIMES_S)
def test_runs_add_up(one: list[float], other: list[float]) -> None:
    assert merged([histogram(one), histogram(other)]) == histogram(one + other)


@given(TIMES_S)
def test_a_quantile_is_known_to_a_bucket(times_s: list[float]) -> None:
    counts = json.loads(json.dumps(histogram(times_s)))
    assert sum(counts.values()) == len(times_s)
    fractions = [fraction for fraction, _ in quantiles(counts)]
    assert fractions == sorted(fractions)
    assert fractions[-1] < 1
    for fraction, ms in quantiles(counts)[1:]:
        true_ms = (percentile(times_s, fraction) or 0) * 1e3
        assert true_ms <= ms * (1 + 1e-9)
        assert ms <= true_ms * 2 ** (1 / PER_OCTAVE) * (1 + 1e-9)


def test_pieces_that_were_read_together_are_counted() -> None:
    assert quantiles(histogram([0.0]))[0][1] == pytest.approx(SHORTEST_MS, rel=0.05)
