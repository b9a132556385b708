"""Charts as files that can be committed."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from benchmarks.report.plots import Chart, Line, draw

CHART = Chart(
    "Tokens against streams",
    "streams",
    "tokens/s",
    [
        Line("ours p50", [(1, 10.0), (8, 70.0)]),
        Line("ours p99", [(1, 11.0), (8, 70.5)], kin="ours p50"),
        Line("theirs", [(8, 71.0)]),
    ],
    x_ticks=((1, "1"), (8, "8")),
)


def test_the_same_chart_gives_the_same_bytes_with_its_text_as_text() -> None:
    svg = draw(CHART)
    assert draw(CHART) == svg
    assert not re.search(r"\d{4}-\d\d-\d\dT", svg)
    root = ElementTree.fromstring(svg)  # noqa: S314
    texts = {"".join(element.itertext()).strip() for element in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"ours p50", "ours p99", "theirs", "streams"} <= texts


def test_every_colour_has_one_for_dark_pages() -> None:
    svg = draw(CHART)
    sheet = svg[svg.index("<style>@media") : svg.index("</style>")]
    drawn = set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", svg.replace(sheet, "")))
    assert drawn
    assert all(f'"fill: {colour}"' in sheet for colour in drawn)
