"""Draws charts as SVG files that can be committed: the same chart gives the same bytes.

Text stays text. Colours are chosen for a light page; a style sheet inside of the file has those for a dark one. The background is
the file's own, so that it can be read also where a page and its reader's preference differ.
"""

from __future__ import annotations

import io
import itertools
import math
import re
from collections.abc import Sequence

import matplotlib as mpl
from charts import BarChart, BarPanel, Chart, Line, LineChart
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, FuncFormatter, LogLocator, NullLocator

#: On a light page -> on a dark one.
_PAPER, _INK, _FAINT, _GRID = "#ffffff", "#24292f", "#57606a", "#d8dee4"
_LINES = ("#0969da", "#bc4c00", "#1a7f37", "#8250df", "#bf3989", "#7d4e00")
_DARK = {
    _PAPER: "#0d1117",
    _INK: "#e6edf3",
    _FAINT: "#9ba4ae",
    _GRID: "#30363d",
    **dict(zip(_LINES, ("#58a6ff", "#f0883e", "#56d364", "#bc8cff", "#f778ba", "#d4a72c"), strict=True)),
}
_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "triptych",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 11,
    "axes.titlesize": 11,
    "axes.edgecolor": _FAINT,
    "axes.labelcolor": _FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": _INK,
    "xtick.color": _FAINT,
    "ytick.color": _FAINT,
    "grid.color": _GRID,
    "grid.linewidth": 0.8,
    "figure.facecolor": _PAPER,
    "axes.facecolor": _PAPER,
    "savefig.facecolor": _PAPER,
}
#: Of the axes with what stands left of them, in inches. Labels and all it is less than 6 wide: a phone shows it at two thirds.
_WIDTH, _HEIGHT = 4.6, 3.3
_BAR_HEIGHT, _HEAD_HEIGHT = 0.25, 0.6
_MAX_COLUMNS = 3
#: The title begins left of the axes, in widths of the axes.
_TITLE_X = -0.15
#: Between the ends of an axis of powers, at least.
_LEAST_RANGE = 10.0
#: Between the middles of two labels, in points.
_LABEL_DISTANCE = 14.0
#: From the axes to the labels, in points.
_LABEL_INDENT = 14.0


def draw(chart: Chart) -> str:
    """The chart as SVG."""
    with mpl.rc_context(_STYLE):
        figure = _bars(chart) if isinstance(chart, BarChart) else _lines(chart)
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


def _lines(chart: LineChart) -> Figure:
    figure = Figure(figsize=(_WIDTH, _HEIGHT))
    axes = figure.add_subplot()
    colours = _colours(chart.lines)
    for line, colour in zip(chart.lines, colours, strict=True):
        xs, ys = zip(*line.points, strict=True)
        marker = "o" if chart.marks_points else ""
        dashes = "solid" if line.kin is None else (0, (4, 2))
        axes.plot(xs, ys, color=colour, linestyle=dashes, marker=marker, markersize=4, linewidth=1.8, clip_on=False)
    _scale(axes, chart)
    axes.set_title(chart.title, loc="left", color=_INK, fontweight="bold", pad=12, x=_TITLE_X)
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    axes.grid(axis="y")
    axes.set_axisbelow(True)
    _label_ends(figure, axes, chart.lines, colours)
    return figure


def _colours(lines: Sequence[Line]) -> list[str]:
    """A colour per line."""
    own = dict(zip((line.label for line in lines if line.kin is None), itertools.cycle(_LINES), strict=False))
    return [own[line.label if line.kin is None else line.kin] for line in lines]


def _scale(axes: Axes, chart: LineChart) -> None:
    if chart.log_x:
        axes.set_xscale("log")
    ys = [y for line in chart.lines for _, y in line.points]
    if chart.log_y:
        axes.set_yscale("log")
        # A narrow range would make much of little.
        wider = max(1.15, math.sqrt(_LEAST_RANGE * min(ys) / max(ys)))
        axes.set_ylim(min(ys) / wider, max(ys) * wider)
        axes.yaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.set_ylim(0, 1.08 * max(ys))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    if chart.x_ticks:
        places, texts = zip(*chart.x_ticks, strict=True)
        axes.xaxis.set_major_locator(FixedLocator(places))
        axes.xaxis.set_major_formatter(FixedFormatter(texts))
        axes.xaxis.set_minor_locator(NullLocator())


def _label_ends(figure: Figure, axes: Axes, lines: Sequence[Line], colours: Sequence[str]) -> None:
    """Write each line's label right of its last point, moved up or down as far as the others need, and join the two."""
    figure.draw_without_rendering()
    box, points_per_pixel = axes.get_window_extent(), 72 / figure.dpi
    width, height = box.width * points_per_pixel, box.height * points_per_pixel
    to_axes = axes.transData + axes.transAxes.inverted()
    ends = [to_axes.transform(line.points[-1]) for line in lines]
    places = spread([y * height for _, y in ends], _LABEL_DISTANCE)
    begin = 1 + _LABEL_INDENT / width
    for line, colour, (x, y), place in zip(lines, colours, ends, places, strict=True):
        to_y = place / height
        axes.text(begin, to_y, line.label, transform=axes.transAxes, color=colour, va="center_baseline", clip_on=False)
        joint = (x + 0.015, begin - 0.01), (y, to_y)
        axes.plot(*joint, color=colour, linewidth=0.7, alpha=0.6, transform=axes.transAxes, clip_on=False)


def spread(places: Sequence[float], distance: float) -> list[float]:
    """Move places apart to the distance, as little as possible in all: those that collide move as one group about their mean."""
    groups: list[list[int]] = []
    middles: list[float] = []
    for index in sorted(range(len(places)), key=places.__getitem__):
        groups.append([index])
        middles.append(places[index])
        while len(groups) > 1 and middles[-1] - middles[-2] < distance * (len(groups[-1]) + len(groups[-2])) / 2:
            joined = groups.pop(-2) + groups.pop(-1)
            del middles[-2:]
            groups.append(joined)
            middles.append(sum(places[each] for each in joined) / len(joined))
    moved = list(places)
    for group, middle in zip(groups, middles, strict=True):
        for rank, index in enumerate(group):
            moved[index] = middle + (rank - (len(group) - 1) / 2) * distance
    return moved


def _bars(chart: BarChart) -> Figure:
    num_rows, num_columns = -(-len(chart.panels) // _MAX_COLUMNS), min(len(chart.panels), _MAX_COLUMNS)
    height = num_rows * (_HEAD_HEIGHT + _BAR_HEIGHT * len(chart.rows))
    figure = Figure(figsize=(_WIDTH, height))
    for index, panel in enumerate(chart.panels):
        axes = figure.add_subplot(num_rows, num_columns, index + 1)
        _bar_panel(axes, panel, chart.rows if index % num_columns == 0 else [""] * len(chart.rows))
    figure.subplots_adjust(left=0.0, right=1.0, bottom=0.0, top=1 - _HEAD_HEIGHT / height, wspace=0.1, hspace=0.28)
    title = f"{chart.title}, {chart.x_label}"
    figure.suptitle(title, x=_TITLE_X - 0.18, y=1.0, ha="left", va="bottom", fontsize=11, fontweight="bold")
    return figure


def _bar_panel(axes: Axes, panel: BarPanel, rows: Sequence[str]) -> None:
    places, most = range(len(rows)), max(panel.values)
    axes.barh(places, panel.values, height=0.62, color=_LINES[0])
    for place, value in zip(places, panel.values, strict=True):
        axes.text(value + 0.04 * most, place, _short(value), va="center", fontsize=10)
    axes.set_xlim(0, 1.6 * most)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_title(panel.title, loc="left", fontsize=10)
    axes.xaxis.set_visible(False)
    axes.spines["bottom"].set_visible(False)
    axes.set_yticks(places, rows)
    axes.tick_params(axis="y", length=0, labelcolor=_INK)


def _short(value: float) -> str:
    """Two significant digits or whole numbers."""
    digits = max(0, 1 - math.floor(math.log10(value))) if value > 0 else 0
    return f"{value:.{min(digits, 2)}f}"
