"""Families of metrics for Prometheus."""

from __future__ import annotations

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily


def gauge(name: str, text: str, value: float) -> Metric:
    """A value that goes up and down."""
    return GaugeMetricFamily(name, text, value)


def counter(name: str, text: str, value: float) -> Metric:
    """A number that grows; `_total` is added to its name."""
    return CounterMetricFamily(name, text, value)


def labelled_counter(name: str, text: str, label: str, values: dict[str, int]) -> Metric:
    """A counter per value of a label."""
    family = CounterMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family
