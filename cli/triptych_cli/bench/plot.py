"""The figures as a picture: an SVG file of three charts, written without a library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from triptych_cli.bench.figures import Level

_WIDTH, _HEIGHT, _MARGIN = 360, 240, 48
_COLOURS = ("#1f77b4", "#d62728", "#2ca02c")
#: A name, and its points: load and value. A value that is None is left out.
Line = tuple[str, Sequence[tuple[float, float | None]]]


def svg_of(levels: Sequence[Level], title: str) -> str:
    """Throughput, time to first token and time between tokens, by load."""
    load = "requests/s sent" if any(one.rate is not None for one in levels) else "streams"
    charts: list[tuple[str, list[Line]]] = [
        ("output tokens/s", [("output tokens/s", [(one.load, one.output_tokens_per_s) for one in levels])]),
        ("TTFT, ms", [(name, [(one.load, getattr(one.ttft, name)) for one in levels]) for name in ("p50", "p99")]),
        ("ITL, ms", [(name, [(one.load, getattr(one.itl, name)) for one in levels]) for name in ("p50", "p99")]),
    ]
    parts = [_chart(number * _WIDTH, name, load, lines) for number, (name, lines) in enumerate(charts)]
    head = f'<text x="{_MARGIN}" y="18" font-size="14">{escape(title)}</text>'
    size = f'width="{_WIDTH * len(charts)}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH * len(charts)} {_HEIGHT}"'
    style = 'font-family="sans-serif" font-size="10" style="background:#fff"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>{head}{"".join(parts)}</svg>\n'


def _chart(left: float, name: str, load: str, lines: Sequence[Line]) -> str:
    points = [(x, y) for _, line in lines for x, y in line if y is not None]
    most_x, most_y = (_round_up(max((point[axis] for point in points), default=1.0)) for axis in (0, 1))
    x0, y0, x1, y1 = left + _MARGIN, _HEIGHT - _MARGIN, left + _WIDTH - 12, _MARGIN
    parts = [f'<text x="{x0}" y="{y1 - 8}">{escape(name)}</text><text x="{x1}" y="{y0 + 30}" text-anchor="end">{load}</text>']
    for step in range(5):
        y, x = y0 - (y0 - y1) * step / 4, x0 + (x1 - x0) * step / 4
        parts.append(f'<path d="M{x0} {y:.1f}H{x1}" stroke="#ddd"/>')
        parts.append(f'<text x="{x0 - 4}" y="{y + 3:.1f}" text-anchor="end">{most_y * step / 4:g}</text>')
        parts.append(f'<text x="{x:.1f}" y="{y0 + 14}" text-anchor="middle">{most_x * step / 4:g}</text>')
    for number, (label, line) in enumerate(lines):
        colour = _COLOURS[number % len(_COLOURS)]
        places = [(x0 + (x1 - x0) * x / most_x, y0 - (y0 - y1) * y / most_y) for x, y in line if y is not None]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
        if len(lines) > 1:
            parts.append(f'<text x="{x1 - 40 * (len(lines) - number)}" y="{y1 - 8}" fill="{colour}">{label}</text>')
    return "".join(parts)


def _round_up(value: float) -> float:
    """The next number of 1, 2, 4, 6, 8 and 10, times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next((step * power for step in (1, 2, 4, 6, 8) if step * power >= value * (1 - 1e-9)), 10 * power)
