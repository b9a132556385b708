"""The figures of `triptych bench`, its table and its chart."""

from __future__ import annotations

import io
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from triptych_cli.bench.figures import keeps, level_of
from triptych_cli.bench.plot import _round_up, svg_of
from triptych_cli.bench.table import notes_of, table_of
from triptych_cli.load.figures import Answer


def test_the_figures_of_a_level() -> None:
    answers = [Answer(0.0, [0.1, 0.2, 0.4], 10, 3), Answer(1.0, [1.3], 20, 1)]
    level = level_of(answers, ["late"], 2.0, limits={"ttft": 200, "tpot": 151}, concurrency=2)
    assert (level.requests_per_s, level.output_tokens_per_s, level.total_tokens_per_s) == (1.0, 2.0, 17.0)
    assert (level.mean_input_len, level.mean_output_len, level.num_failed) == (15, 2, 1)
    assert level.ttft.p50 == pytest.approx(100)
    assert level.itl.p99 == pytest.approx(200)
    assert level.tpot.p50 == pytest.approx(150)
    assert level.e2el.p99 == pytest.approx(400)
    assert level.goodput == 0.5
    nothing = level_of([], [], 0.0, limits={}, rate=0.5, is_whole=False)
    assert (nothing.requests_per_s, nothing.goodput, nothing.ttft.p50, nothing.load) == (0, None, None, 0.5)
    assert notes_of([nothing]) == ["* not whole"]


@given(st.floats(1, 1000), st.floats(1, 1000), st.floats(1, 1000))
def test_goodput_counts_what_keeps_every_limit(ttft: float, tpot: float, e2el: float) -> None:
    answer = Answer(0.0, [0.1, 0.2, 0.3], 5, 3)
    limits = {"ttft": ttft, "tpot": tpot, "e2el": e2el}
    expected = ttft >= 100 and tpot >= (0.3 - 0.1) / 2 * 1e3 and e2el >= 300
    assert keeps(answer, limits) == expected


@given(st.floats(1e-6, 1e9))
def test_an_axis_ends_at_a_round_number(value: float) -> None:
    most = _round_up(value)
    assert value * (1 - 1e-6) <= most <= value * 2.1


def test_the_table_fits_a_terminal_and_a_chart_has_no_markup_of_others() -> None:
    slow = Answer(0.0, [20.0, 25.0, 140.0], 1000, 300)
    levels = [level_of([slow] * 3, [], 1.0, limits={"ttft": 5}, concurrency=number) for number in (1, 1024)]
    console = Console(file=io.StringIO(), width=80)
    console.print(table_of(levels))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert "…" not in "".join(lines)
    assert max(map(len, lines)) <= 80
    assert "&lt;b&gt;" in svg_of(levels, "<b>")
    ElementTree.fromstring(svg_of([], "no level"))  # noqa: S314 - our own text
