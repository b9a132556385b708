"""Metric families for Prometheus."""

from __future__ import annotations

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily


def gauge(name: str, text: str, value: float) -> Metric:
    """A value that can rise and fall."""
    return GaugeMetricFamily(name, text, value)


def counter(name: str, text: str, value: float) -> Metric:
    """A number that only grows. `_total` is appended to its name."""
    return CounterMetricFamily(name, text, value)


def labelled_counter(name: str, text: str, label: str, values: dict[str, int]) -> Metric:
    """A counter with one value per value of a label."""
    family = CounterMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family
