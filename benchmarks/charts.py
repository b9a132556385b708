"""What a chart shows, apart from how it is drawn: the reports make these, plots.py draws them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """Points (x, y) that belong together, in the order of x; the label stands at the last one.

    Attributes:
        kin: the label of another line, whose colour it gets; it is dashed then.
    """

    label: str
    points: Sequence[tuple[float, float]]
    kin: str | None = None


@dataclass(frozen=True)
class LineChart:
    """Lines over one x.

    Attributes:
        x_ticks: (where, what to write there); empty for the lines' own x.
        log_x, log_y: on a scale of powers. Else y begins at 0.
        marks_points: each was measured; else they are a curve.
        about: what is to be known to read it.
    """

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    x_ticks: Sequence[tuple[float, str]] = ()
    log_x: bool = False
    log_y: bool = False
    marks_points: bool = True
    about: str = ""


@dataclass(frozen=True)
class BarPanel:
    """One value per row of a BarChart."""

    title: str
    values: Sequence[float]


@dataclass(frozen=True)
class BarChart:
    """Panels side by side whose rows are the same; each has a scale of its own, its values are written beside the bars."""

    title: str
    x_label: str
    rows: Sequence[str]
    panels: Sequence[BarPanel]
    about: str = ""


Chart = LineChart | BarChart
