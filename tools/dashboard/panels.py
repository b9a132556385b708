"""What a panel is, and the PromQL that panels are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: The instances that the dashboard's variables select. Every query has it.
ON = 'instance=~"$instance"'
_QUANTILES = (0.5, 0.95, 0.99)


@dataclass(frozen=True)
class Panel:
    """A chart, or a number.

    Args:
        queries: PromQL, each with its legend.
        unit: one of Grafana's units.
        stacked: the series add up.
    """

    title: str
    queries: Sequence[tuple[str, str]]
    unit: str = "short"
    description: str = ""
    stacked: bool = False
    kind: str = "timeseries"
    #: From this value on the number is orange, and red.
    thresholds: tuple[float, float] | None = None


def rate(metric: str, by: str = "", where: str = "") -> str:
    """Events per second."""
    return f"{_sum(by)}(rate({metric}_total{{{_on(where)}}}[$__rate_interval]))"


def total(metric: str, by: str = "", where: str = "") -> str:
    """A sum of gauges."""
    return f"{_sum(by)}({metric}{{{_on(where)}}})"


def quantiles(metric: str, of: Sequence[float] = _QUANTILES, by: str = "", where: str = "") -> list[tuple[str, str]]:
    """Quantiles of a histogram, each with its legend."""
    labels = f"le, {by}" if by else "le"
    inner = f"sum by ({labels}) (rate({metric}_bucket{{{_on(where)}}}[$__rate_interval]))"
    suffix = f" {{{{{by}}}}}" if by else ""
    return [(f"histogram_quantile({number:g}, {inner})", f"p{100 * number:g}{suffix}") for number in of]


def mean(metric: str, by: str = "") -> str:
    """Mean of a histogram."""
    parts = (f"{_sum(by)}(rate({metric}_{part}{{{ON}}}[$__rate_interval]))" for part in ("sum", "count"))
    return " / ".join(parts)


def share(part: str, whole: str) -> str:
    """Part of a whole; nothing while the whole is 0."""
    return f"{part} / ({whole} > 0)"


def _sum(by: str) -> str:
    return f"sum by ({by}) " if by else "sum"


def _on(where: str) -> str:
    return f"{ON}, {where}" if where else ON
