"""Charts as files that can be committed."""

from __future__ import annotations

import itertools
import re
from xml.etree import ElementTree

import pytest
from charts import BarChart, BarPanel, Chart, Line, LineChart
from hypothesis import given
from hypothesis import strategies as st
from plots import draw, spread

LINES = LineChart(
    "Tokens against streams",
    "streams",
    "tokens/s",
    [
        Line("ours p50", [(1, 10.0), (8, 70.0)]),
        Line("ours p99", [(1, 11.0), (8, 70.5)], kin="ours p50"),
        Line("theirs", [(8, 71.0)]),
    ],
    x_ticks=((1, "1"), (8, "8")),
    log_x=True,
)
BARS = BarChart("A step", "ms", ["schedule", "attention"], [BarPanel("1 sequence", [0.05, 12.0]), BarPanel("8", [0.0, 30.0])])


@pytest.mark.parametrize("chart", [LINES, BARS], ids=["lines", "bars"])
def test_the_same_chart_gives_the_same_bytes_with_its_text_as_text(chart: Chart) -> None:
    svg = draw(chart)
    assert draw(chart) == svg
    assert not re.search(r"\d{4}-\d\d-\d\dT", svg)
    root = ElementTree.fromstring(svg)  # noqa: S314
    texts = {"".join(element.itertext()).strip() for element in root.iter("{http://www.w3.org/2000/svg}text")}
    wanted = {"ours p50", "ours p99", "theirs", "streams"} if isinstance(chart, LineChart) else {"schedule", "0.05", "12", "0"}
    assert wanted <= texts


def test_every_colour_has_one_for_dark_pages() -> None:
    for chart in (LINES, BARS):
        svg = draw(chart)
        sheet = svg[svg.index("<style>@media") : svg.index("</style>")]
        drawn = set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", svg.replace(sheet, "")))
        assert drawn
        assert all(f'"fill: {colour}"' in sheet for colour in drawn)


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=8), st.floats(1, 50))
def test_labels_are_moved_apart_and_keep_their_order(places: list[float], distance: float) -> None:
    moved = spread(places, distance)
    order = sorted(range(len(places)), key=places.__getitem__)
    assert all(moved[b] - moved[a] >= distance * (1 - 1e-6) - 1e-6 for a, b in itertools.pairwise(order))
    if all(places[b] - places[a] > distance for a, b in itertools.pairwise(order)):
        assert moved == pytest.approx(places)
