"""Draws charts as SVG files that can be committed: the same chart gives the same bytes.

Text stays text. Colours are chosen for a light page; a style sheet inside of the file has those for a dark one. The background is
the file's own, so that it can be read also where a page and its reader's preference differ.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence

import matplotlib as mpl
from charts import BarChart, Chart, Line, LineChart
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
#: Inches; a phone shows it at two thirds.
_WIDTH, _HEIGHT = 6.0, 3.6
_ROW_HEIGHT, _HEAD_HEIGHT = 0.27, 0.9
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
    for line in chart.lines:
        xs, ys = zip(*line.points, strict=True)
        marker = "o" if len(xs) <= 12 else ""
        dashes = (0, (4, 2)) if line.is_dashed else "solid"
        axes.plot(xs, ys, color=colours[line.label], linestyle=dashes, marker=marker, markersize=4, linewidth=1.8, clip_on=False)
    _scale(axes, chart)
    axes.set_title(chart.title, loc="left", color=_INK, fontweight="bold", pad=12)
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    axes.grid(axis="y")
    axes.set_axisbelow(True)
    _label_ends(figure, axes, chart.lines, colours)
    return figure


def _colours(lines: Sequence[Line]) -> dict[str, str]:
    """A colour per line; a dashed one has that of the line whose label begins like its own."""
    solid = [line.label for line in lines if not line.is_dashed]
    colours = {label: _LINES[index % len(_LINES)] for index, label in enumerate(solid)}
    for line in lines:
        if line.is_dashed:
            own = next((label for label in solid if _stem(line.label) == _stem(label)), None)
            colours[line.label] = colours[own] if own is not None else _FAINT
    return colours


def _stem(label: str) -> str:
    """What labels of the same thing have in common: all before a comma, or before a percentile."""
    return re.sub(r",.*| p\d+$", "", label)


def _scale(axes: Axes, chart: LineChart) -> None:
    if chart.log_x:
        axes.set_xscale("log")
    if chart.log_y:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.set_ylim(0, 1.08 * max(y for line in chart.lines for _, y in line.points))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    if chart.x_ticks:
        places, texts = zip(*chart.x_ticks, strict=True)
        axes.xaxis.set_major_locator(FixedLocator(places))
        axes.xaxis.set_major_formatter(FixedFormatter(texts))
        axes.xaxis.set_minor_locator(NullLocator())


def _label_ends(figure: Figure, axes: Axes, lines: Sequence[Line], colours: dict[str, str]) -> None:
    """Write each line's label right of its last point, moved up or down as far as the others need, and join the two."""
    figure.draw_without_rendering()
    box, points_per_pixel = axes.get_window_extent(), 72 / figure.dpi
    width, height = box.width * points_per_pixel, box.height * points_per_pixel
    to_axes = axes.transData + axes.transAxes.inverted()
    ends = {line.label: to_axes.transform(line.points[-1]) for line in lines}
    places = spread({label: y * height for label, (_, y) in ends.items()}, _LABEL_DISTANCE)
    begin = 1 + _LABEL_INDENT / width
    for label, (x, y) in ends.items():
        place, colour = places[label] / height, colours[label]
        axes.text(begin, place, label, transform=axes.transAxes, color=colour, va="center_baseline", clip_on=False)
        joint = (x + 0.01, begin - 0.01), (y, place)
        axes.plot(*joint, color=colour, linewidth=0.7, alpha=0.6, transform=axes.transAxes, clip_on=False)


def spread(places: dict[str, float], distance: float) -> dict[str, float]:
    """Move places apart to the distance, as little as possible in all: those that collide move as one group about their mean."""
    groups: list[list[str]] = []
    middles: list[float] = []
    for label in sorted(places, key=lambda label: places[label]):
        groups.append([label])
        middles.append(places[label])
        while len(groups) > 1 and middles[-1] - middles[-2] < distance * (len(groups[-1]) + len(groups[-2])) / 2:
            joined = groups.pop(-2) + groups.pop(-1)
            del middles[-2:]
            groups.append(joined)
            middles.append(sum(places[each] for each in joined) / len(joined))
    spread_out = {}
    for group, middle in zip(groups, middles, strict=True):
        for index, label in enumerate(group):
            spread_out[label] = middle + (index - (len(group) - 1) / 2) * distance
    return spread_out


def _bars(chart: BarChart) -> Figure:
    figure = Figure(figsize=(_WIDTH + 1.2, _HEAD_HEIGHT + _ROW_HEIGHT * len(chart.rows)))
    rows = range(len(chart.rows))
    for index, panel in enumerate(chart.panels):
        axes = figure.add_subplot(1, len(chart.panels), index + 1)
        axes.barh(rows, panel.values, height=0.62, color=_LINES[0])
        most = max(panel.values)
        for row, value in zip(rows, panel.values, strict=True):
            axes.text(value + 0.04 * most, row, _short(value), va="center", fontsize=9)
        axes.set_xlim(0, 1.5 * most)
        axes.set_ylim(len(chart.rows) - 0.4, -0.6)
        axes.set_title(panel.title, loc="left", fontsize=9)
        axes.xaxis.set_visible(False)
        axes.spines["bottom"].set_visible(False)
        axes.set_yticks(rows, chart.rows if index == 0 else [""] * len(chart.rows))
        axes.tick_params(axis="y", length=0, labelcolor=_INK)
    figure.subplots_adjust(wspace=0.08)
    figure.suptitle(f"{chart.title}, {chart.x_label}", x=0.0, ha="left", fontsize=11, fontweight="bold", y=1.06)
    return figure


def _short(value: float) -> str:
    """Two significant digits or whole numbers."""
    digits = max(0, 1 - math.floor(math.log10(value))) if value > 0 else 0
    return f"{value:.{min(digits, 2)}f}"
