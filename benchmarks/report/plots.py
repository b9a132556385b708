"""Charts, and how they are drawn: SVG files that can be committed, because the same chart gives the same bytes.

Text stays text. Colours are chosen for a light page; a style sheet inside of the file has those for a dark one. The background is
the file's own, so that it can be read also where a page and its reader's preference differ.
"""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Line:
    """Points (x, y) that belong together, in the order of x.

    Attributes:
        kin: the label of another line, whose colour it gets; it is dashed then.
    """

    label: str
    points: Sequence[tuple[float, float]]
    kin: str | None = None


@dataclass(frozen=True)
class Chart:
    """Lines over one x.

    Attributes:
        x_ticks: (where, what to write there).
        log_y: on a scale of powers, as x always is. Else y begins at 0.
    """

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    x_ticks: Sequence[tuple[float, str]]
    log_y: bool = False


#: On a light page -> on a dark one.
_PAPER, _INK, _FAINT, _GRID = "#ffffff", "#24292f", "#57606a", "#d8dee4"
_COLOURS = ("#0969da", "#bc4c00", "#1a7f37", "#8250df", "#bf3989", "#7d4e00", "#0a7ea4", "#a40e26", "#4d7c0f", "#6e7781")
_DARK_COLOURS = ("#58a6ff", "#f0883e", "#56d364", "#bc8cff", "#f778ba", "#d4a72c", "#39c5cf", "#ff7b72", "#a5d65c", "#8b949e")
_DARK = {_PAPER: "#0d1117", _INK: "#e6edf3", _FAINT: "#9ba4ae", _GRID: "#30363d", **dict(zip(_COLOURS, _DARK_COLOURS, strict=True))}
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "triptych",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 11,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 12,
    "axes.axisbelow": True,
    "axes.edgecolor": _FAINT,
    "axes.labelcolor": _FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "text.color": _INK,
    "xtick.color": _FAINT,
    "ytick.color": _FAINT,
    "grid.color": _GRID,
    "figure.facecolor": _PAPER,
    "axes.facecolor": _PAPER,
    "savefig.facecolor": _PAPER,
}
_WIDTH, _HEIGHT = 5.2, 3.3  # inches; a phone shows it at two thirds


def draw(chart: Chart) -> str:
    """The chart as SVG."""
    import matplotlib as mpl  # takes a second, and most users of this module only describe charts

    with mpl.rc_context(_STYLE):
        figure = _lines(chart)
        file = io.StringIO()
        figure.savefig(file, format="svg", bbox_inches="tight", pad_inches=0.12, metadata={"Date": None, "Title": chart.title})
    return _with_dark_colours(file.getvalue())


def _with_dark_colours(svg: str) -> str:
    """Add a style sheet that replaces each colour on a dark page. It must win over the inline styles that matplotlib writes."""
    rules = "".join(
        f'[style*="{kind}: {light}"]{{{kind}:{dark}!important}}' for light, dark in _DARK.items() for kind in ("fill", "stroke")
    )
    sheet = f"<style>@media(prefers-color-scheme:dark){{{rules}}}</style>"
    # Whoever has not the font takes what the page has.
    svg = svg.replace("'DejaVu Sans'", "'DejaVu Sans', Verdana, system-ui, sans-serif")
    return re.sub(r"(<svg [^>]*>)", lambda match: match[1] + "\n " + sheet, svg, count=1)


def _lines(chart: Chart) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedFormatter, FixedLocator, FuncFormatter, LogLocator, NullLocator

    figure = Figure(figsize=(_WIDTH, _HEIGHT))
    axes = figure.add_subplot()
    colours = dict(zip((line.label for line in chart.lines if line.kin is None), itertools.cycle(_COLOURS), strict=False))
    for line in chart.lines:
        xs, ys = zip(*line.points, strict=True)
        dashes = "solid" if line.kin is None else (0, (4, 2))
        axes.plot(xs, ys, color=colours[line.kin or line.label], linestyle=dashes, marker="o", markersize=3, label=line.label)
    axes.set_xscale("log")
    if chart.log_y:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.set_ylim(0, 1.08 * max(y for line in chart.lines for _, y in line.points))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    places, texts = zip(*chart.x_ticks, strict=True)
    axes.xaxis.set_major_locator(FixedLocator(places))
    axes.xaxis.set_major_formatter(FixedFormatter(texts))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set(title=chart.title, xlabel=chart.x_label, ylabel=chart.y_label)
    axes.grid(axis="y")
    axes.legend(fontsize=9)
    return figure
