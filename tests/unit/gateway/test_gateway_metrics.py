"""The gateway's own histogram says what the library's says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.samples import Sample
from triptych_gateway.metrics import EventGaps

BOUNDS = (0.001, 0.01, 0.1, 2.5)
GAPS = st.tuples(st.sampled_from(["/a", "/b"]), st.floats(0, 10) | st.sampled_from(BOUNDS))


def samples(registry: CollectorRegistry) -> list[Sample]:
    """All but the time of creation, which ours does not tell."""
    return [sample for family in registry.collect() for sample in family.samples if not sample.name.endswith("_created")]


@given(gaps=st.lists(GAPS))
def test_event_gaps_are_a_histogram(gaps: list[tuple[str, float]]) -> None:
    theirs, ours = CollectorRegistry(), CollectorRegistry()
    histogram = Histogram("gap_seconds", "Text.", ("route",), buckets=BOUNDS, registry=theirs)
    event_gaps = EventGaps("gap_seconds", "Text.", BOUNDS)
    ours.register(event_gaps)
    for route, gap_s in gaps:
        event_gaps.add_route(route)
        event_gaps.observe(route, gap_s)
        histogram.labels(route).observe(gap_s)
    assert samples(ours) == samples(theirs)
