"""Our own histogram says what the library's says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, Metric
from triptych_common.telemetry.histogram import Histograms
from triptych_common.telemetry.metrics import labelled_histogram

BOUNDS = (0.001, 0.01, 0.1, 2.5, 16384.0)
VALUES = st.tuples(st.sampled_from(["/a", "/b"]), st.floats(0, 30_000) | st.sampled_from(BOUNDS))


def told(metric: Metric) -> list[tuple[str, dict[str, str], float]]:
    """All but the time of creation, which ours does not tell."""
    return [(sample.name, sample.labels, sample.value) for sample in metric.samples if not sample.name.endswith("_created")]


@given(values=st.lists(VALUES))
def test_values_are_counted_as_the_library_counts_them(values: list[tuple[str, float]]) -> None:
    registry = CollectorRegistry()
    theirs = Histogram("gap_seconds", "Text.", ("route",), buckets=BOUNDS, registry=registry)
    ours = Histograms(BOUNDS)
    for route, value in values:
        ours[route].observe(value)
        theirs.labels(route).observe(value)
    (expected,) = registry.collect()
    assert told(labelled_histogram("gap_seconds", "Text.", "route", ours)) == told(expected)
