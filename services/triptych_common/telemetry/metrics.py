"""Metric families for Prometheus.

The functions whose names begin with `labelled` take a value per value of a label, or per tuple of values of several labels. Keyword
arguments are labels that all series of the family have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import TypeVar

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from triptych_common import __version__
from triptych_common.telemetry.histogram import Histogram

Key = TypeVar("Key", bound=str | tuple[str, ...])
_Label = str | tuple[str, ...]


def gauge(name: str, text: str, value: float, **labels: str) -> Metric:
    """A value that can rise and fall."""
    return labelled_gauge(name, text, (), {(): value}, **labels)


def labelled_gauge(name: str, text: str, label: _Label, values: Mapping[Key, float], **labels: str) -> Metric:
    """Values that can rise and fall."""
    family = GaugeMetricFamily(name, text, labels=[*labels, *_several(label)])
    for key, value in list(values.items()):
        family.add_metric([*labels.values(), *_several(key)], value)
    return family


def counter(name: str, text: str, value: float, **labels: str) -> Metric:
    """A number that only grows. `_total` is appended to its name."""
    return labelled_counter(name, text, (), {(): value}, **labels)


def labelled_counter(name: str, text: str, label: _Label, values: Mapping[Key, float], **labels: str) -> Metric:
    """Numbers that only grow. `_total` is appended to their name."""
    family = CounterMetricFamily(name, text, labels=[*labels, *_several(label)])
    for key, value in list(values.items()):
        family.add_metric([*labels.values(), *_several(key)], value)
    return family


def histogram(name: str, text: str, values: Histogram, **labels: str) -> Metric:
    """Numbers of values up to each bound, and the sum of the values."""
    return labelled_histogram(name, text, (), {(): values}, **labels)


def labelled_histogram(name: str, text: str, label: _Label, histograms: Mapping[Key, Histogram], **labels: str) -> Metric:
    """Several histograms."""
    family = HistogramMetricFamily(name, text, labels=[*labels, *_several(label)])
    for key, values in list(histograms.items()):
        bounds = [*map(str, values.bounds), "+Inf"]
        buckets = list(zip(bounds, accumulate(list(values.counts)), strict=True))
        family.add_metric([*labels.values(), *_several(key)], buckets, values.total)
    return family


def build_info(service: str) -> Metric:
    """The version of a service, as a label. Its value is 1."""
    return gauge("triptych_build_info", "Version of the service; always 1.", 1, service=service, version=__version__)


def model_info(service: str, models: Iterable[str]) -> Metric:
    """The names of the models that a service serves, as labels. Its values are 1."""
    return labelled_gauge(
        "triptych_model_info", "Model of the service; always 1.", "model_name", dict.fromkeys(models, 1), service=service
    )


def _several(label: _Label) -> Sequence[str]:
    return (label,) if isinstance(label, str) else label
