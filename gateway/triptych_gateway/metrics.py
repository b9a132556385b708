"""The gateway's Prometheus metrics."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from triptych.v1 import common_pb2

from triptych_gateway.dialects.cost import Cost
from triptych_gateway.dialects.cost_json import MODALITIES, encoder_cache

_LATENCY_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_GAP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2.5)


@dataclass
class RequestRecord:
    """Facts about a request, for the access log and the metrics. Complete when the request has ended."""

    request_id: str
    start_s: float = field(default_factory=time.perf_counter)
    status: int = 0
    is_aborted: bool = False
    stream_error: str = ""
    usage: common_pb2.Usage | None = None
    num_events: int = 0


class EventGaps(Collector):
    """A histogram by route, observed once per event. prometheus_client's Histogram takes locks and costs several times as much.

    Not thread-safe: used only on the event loop.
    """

    def __init__(self, name: str, text: str, buckets: tuple[float, ...]) -> None:
        self._name, self._text, self._bounds = name, text, buckets
        #: route -> the number of gaps in each bucket.
        self._counts: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}

    def observe(self, route: str, gap_s: float) -> None:
        """Count a gap."""
        self._counts[route][bisect_left(self._bounds, gap_s)] += 1
        self._sums[route] += gap_s

    def add_route(self, route: str) -> None:
        """Add a route, if it is new."""
        self._counts.setdefault(route, [0] * (len(self._bounds) + 1))
        self._sums.setdefault(route, 0.0)

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """The samples, for the registry."""
        family = HistogramMetricFamily(self._name, self._text, labels=["route"])
        bounds = [*map(str, self._bounds), "+Inf"]
        for route, counts in self._counts.items():
            family.add_metric([route], list(zip(bounds, accumulate(counts), strict=True)), self._sums[route])
        yield family


class Metrics:
    """The metrics of one gateway, in a registry of its own, so that one process can run several gateways."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.requests = self._counter("requests", "HTTP requests by route and status.", "route", "status")
        self.aborted = self._counter("requests_aborted", "Requests whose client went away before the end.", "route")
        self.stream_errors = self._counter("stream_errors", "Streams that ended with an error event.", "route", "code")
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of finished requests.")
        self.cached_tokens = self._counter("cached_tokens", "Prompt tokens that came from the prefix cache.")
        self.media_tokens = self._counter("media_tokens", "Prompt tokens that stand for media.", "modality")
        self.cached_media_tokens = self._counter("cached_media_tokens", "Those of them that came from the prefix cache.")
        self.media_items = self._counter(
            "media_items", "Media items, by where the encoder found them.", "modality", "encoder_cache"
        )
        self.completion_tokens = self._counter("completion_tokens", "Output tokens of finished requests.")
        self.in_flight = Gauge("triptych_gateway_requests_in_flight", "HTTP requests being answered.", registry=self.registry)
        self.bodies_waiting = Gauge(
            "triptych_gateway_bodies_waiting", "Request bodies that wait for memory.", registry=self.registry
        )
        self.background_responses = Gauge(
            "triptych_gateway_background_responses", "Responses being made in the background.", registry=self.registry
        )
        self.latency = self._histogram("request_seconds", "From the request's head to the answer's end.", _LATENCY_BUCKETS)
        self.ttft = self._histogram("time_to_first_token_seconds", "From the request's head to its first event.", _LATENCY_BUCKETS)
        self.gaps = EventGaps("triptych_gateway_inter_token_seconds", "Between two events of a stream.", _GAP_BUCKETS)
        self.registry.register(self.gaps)
        self.frontend_ready = Gauge("triptych_gateway_frontend_ready", "1 while the frontend is ready.", registry=self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"triptych_gateway_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"triptych_gateway_{name}", text, ("route",), buckets=buckets, registry=self.registry)

    def request_ended(self, record: RequestRecord, route: str) -> None:
        """Count a request once, at its end."""
        self.requests.labels(route, str(record.status)).inc()
        self.latency.labels(route).observe(time.perf_counter() - record.start_s)
        if record.is_aborted:
            self.aborted.labels(route).inc()
        if record.stream_error:
            self.stream_errors.labels(route, record.stream_error).inc()


class GenerationMeter:
    """Records the metrics of one generation request."""

    def __init__(self, metrics: Metrics, record: RequestRecord, route: str) -> None:
        self._metrics = metrics
        self._record = record
        self._last_s = record.start_s
        self._route = route
        metrics.gaps.add_route(route)

    def event(self) -> None:
        """Record an event that is about to be sent."""
        now = time.perf_counter()
        if self._record.num_events:
            self._metrics.gaps.observe(self._route, now - self._last_s)
        else:
            self._metrics.ttft.labels(self._route).observe(now - self._last_s)
        self._last_s = now
        self._record.num_events += 1

    def finished(self, cost: Cost) -> None:
        """Record the cost of a complete answer."""
        usage, metrics = cost.usage, self._metrics
        self._record.usage = usage
        metrics.prompt_tokens.inc(usage.prompt_tokens)
        metrics.cached_tokens.inc(usage.cached_tokens)
        metrics.completion_tokens.inc(usage.completion_tokens)
        metrics.cached_media_tokens.inc(usage.cached_media_tokens)
        for report in cost.media:
            modality = MODALITIES.get(report.modality, "unknown")
            metrics.media_tokens.labels(modality).inc(report.num_tokens)
            metrics.media_items.labels(modality, encoder_cache(report) or "unknown").inc()
