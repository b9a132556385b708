"""The gateway's Prometheus metrics."""

from __future__ import annotations

import time
from collections import Counter as Sums
from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Metric, ProcessCollector, disable_created_metrics
from prometheus_client.registry import Collector
from triptych.v1 import common_pb2, engine_pb2
from triptych_common.telemetry.histogram import GAP_SECONDS, SECONDS, Histograms
from triptych_common.telemetry.metrics import build_info, counter, labelled_gauge, labelled_histogram, model_info

from triptych_gateway.frontends.loads import ModelLoads
from triptych_gateway.record import RequestRecord
from triptych_gateway.tracing import note_first_event, note_usage
from triptych_gateway.wire.cost import MODALITIES, Cost, encoder_cache
from triptych_gateway.wire.errors import ApiError
from triptych_gateway.wire.schema import ignored_fields

# A series per counter with the time at which it was made. Nothing reads it.
disable_created_metrics()
#: Labels that no tenant can have as its name: of callers without a tenant, and of all tenants beyond the limit.
NO_TENANT, OTHER_TENANTS = "(none)", "(other)"


class Metrics(Collector):
    """The metrics of one gateway, in a registry of its own, so that one process can run several gateways.

    Args:
        max_tenants: how many tenants have series of their own.
    """

    def __init__(self, max_tenants: int) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.tenants = Tenants(self._counter, max_tenants)
        self.requests = self._counter("requests", "HTTP requests and gRPC calls by route and status.", "route", "status")
        self.aborted = self._counter("requests_aborted", "Requests whose client went away before the end.", "route")
        self.errors = self._counter("errors", "Requests that ended with an error.", "route", "code")
        self.stream_errors = self._counter("stream_errors", "Streams that ended with an error event.", "route", "code")
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of finished requests.")
        self.cached_tokens = self._counter("cached_tokens", "Prompt tokens that came from the prefix cache.")
        self.media_tokens = self._counter("media_tokens", "Prompt tokens that stand for media.", "modality")
        self.cached_media_tokens = self._counter("cached_media_tokens", "Those of them that came from the prefix cache.")
        self.media_items = self._counter(
            "media_items", "Media items, by where the encoder found them.", "modality", "encoder_cache"
        )
        self.completion_tokens = self._counter("completion_tokens", "Output tokens of finished requests.")
        self.refused = self._counter("access_refused", "Requests refused because of their API key.", "reason")
        self.key_reload_failures = self._counter("api_keys_reload_failures", "Versions of the file of keys that were wrong.")
        self.keys_current = self._gauge("api_keys_current", "1 while the keys are those of the file.")
        self.rate_store_failures = self._counter("rate_store_failures", "Times that the store of rates did not answer.")
        self.audit_lost = self._counter("audit_lines_lost", "Lines of the audit log that could not be written.")
        self.in_flight = self._gauge("requests_in_flight", "Requests and calls being answered.")
        self.bodies_waiting = self._gauge("bodies_waiting", "Request bodies that wait for memory.")
        self.background_responses = self._gauge("background_responses", "Responses being made in the background.")
        self.running_batches = self._gauge("running_batches", "Batches that this gateway runs.")
        #: By route.
        self.latency, self.ttft, self.gaps = Histograms(SECONDS), Histograms(SECONDS), Histograms(GAP_SECONDS)
        #: Set before each scrape.
        self.engine_loads: ModelLoads = {}
        #: Names of the models that requests can use.
        self.served_models: Callable[[], Sequence[str]] = tuple
        #: Model -> requests that wait for a frontend of it.
        self.waiting_for_model: Mapping[str, int] = {}
        #: Spans that no collector got.
        self.dropped_spans: Callable[[], int] = lambda: 0
        self.registry.register(self)
        self.frontend_ready = self._gauge("frontend_ready", "1 while the frontend is ready.")

    def add_certificate(self, name: str, expiry_s: Callable[[], float]) -> None:
        """Show when a certificate expires. Without certificates there is no such metric."""
        self._gauge(f"{name}_expiry_timestamp_seconds", "When the certificate expires, as Unix time.").set_function(expiry_s)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"triptych_gateway_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"triptych_gateway_{name}", text, registry=self.registry)

    def request_ended(self, record: RequestRecord, route: str) -> None:
        """Count a request once, at its end."""
        self.requests.labels(route, str(record.status)).inc()
        self.latency[route].observe(time.perf_counter() - record.start_s)
        if record.refusal:
            self.refused.labels(record.refusal).inc()
        if record.is_aborted:
            self.aborted.labels(route).inc()
        if record.stream_error:
            self.stream_errors.labels(route, record.stream_error).inc()
        if record.error or record.stream_error:
            self.errors.labels(route, record.error or record.stream_error).inc()

    def failed_later(self, route: str, error: ApiError, *, has_status: bool = False) -> None:
        """Count the error of a turn on a WebSocket, or of a response in the background.

        Args:
            has_status: the status in `requests` tells of it.
        """
        code = error.code or error.type
        self.errors.labels(route, code).inc()
        if error.status >= 500 and not has_status:
            self.stream_errors.labels(route, code).inc()

    def pooled(self, record: RequestRecord, usage: common_pb2.Usage) -> None:
        """Record the cost of an answer without generated text."""
        record.usage = usage
        self.tenants.used(record.tenant, usage)
        note_usage(usage)

    def collect(self) -> Iterator[Metric]:
        """The metrics that are made when they are read."""
        prefix = "triptych_gateway"
        yield build_info("gateway")
        yield model_info("gateway", self.served_models())
        yield labelled_histogram(f"{prefix}_request_seconds", "From the head to the end.", "route", self.latency)
        yield labelled_histogram(f"{prefix}_time_to_first_token_seconds", "From the head to an event.", "route", self.ttft)
        yield labelled_histogram(f"{prefix}_inter_token_seconds", "Between two events of a stream.", "route", self.gaps)
        yield counter(f"{prefix}_spans_dropped", "Spans that no collector got.", self.dropped_spans())
        ignored = "Fields of conversations that are not known, and were left out."
        yield counter(f"{prefix}_history_fields_ignored", ignored, ignored_fields["total"])
        waiting = self.waiting_for_model
        yield labelled_gauge(f"{prefix}_model_requests_waiting", "Requests that wait for a frontend.", "model_name", waiting)
        yield from load_metrics(self.engine_loads)


class Tenants:
    """Counts requests, tokens and refusals of tenants.

    Args:
        max_tenants: as many tenants have series of their own: the first ones that send a request. The others share one.
    """

    def __init__(self, counter: Callable[..., Counter], max_tenants: int) -> None:
        self._max_tenants = max_tenants
        self._names: set[str] = set()
        self._requests = counter("tenant_requests", "Requests, and turns on WebSockets, of each tenant.", "tenant")
        self._prompt_tokens = counter("tenant_prompt_tokens", "Prompt tokens of finished requests.", "tenant")
        self._completion_tokens = counter("tenant_completion_tokens", "Output tokens of finished requests.", "tenant")
        refused = "Requests refused with 429, by what there was too little of."
        self._refused = counter("tenant_refused", refused, "tenant", "resource")

    def ended(self, tenant: str, refused_resource: str) -> None:
        """Count a request, or a turn, that has ended.

        Args:
            refused_resource: what there was too little of; empty if it was not refused.
        """
        label = self._label(tenant)
        self._requests.labels(label).inc()
        if refused_resource:
            self._refused.labels(label, refused_resource).inc()

    def used(self, tenant: str, usage: common_pb2.Usage) -> None:
        """Count the tokens of a complete answer."""
        label = self._label(tenant)
        self._prompt_tokens.labels(label).inc(usage.prompt_tokens)
        self._completion_tokens.labels(label).inc(usage.completion_tokens)

    def _label(self, tenant: str) -> str:
        if not tenant:
            return NO_TENANT
        if tenant not in self._names:
            if len(self._names) >= self._max_tenants:
                return OTHER_TENANTS
            self._names.add(tenant)
        return tenant


def load_metrics(loads: ModelLoads) -> Iterator[Metric]:
    """Sums over all engines of a model, under the names that autoscalers and endpoint pickers know from vLLM."""
    text, labels, engine = "As in vLLM, over all engines.", ("model_name", "engine"), "all"

    def total(of: Callable[[engine_pb2.Load], int]) -> dict[tuple[str, str], int]:
        return {(model, engine): sum(map(of, own)) for model, own in loads.items()}

    blocks, free = total(lambda load: load.num_blocks), total(lambda load: load.num_free_blocks)
    usage = {key: 1 - free[key] / number for key, number in blocks.items() if number}
    by_size = Sums[tuple[str, int]]()
    for model, own in loads.items():
        for load in own:
            by_size[model, load.block_size] += load.num_blocks
    sizes = {(str(size), str(number), engine): 1 for (_, size), number in by_size.items()}
    yield labelled_gauge("vllm:num_requests_running", text, labels, total(lambda load: load.num_running))
    yield labelled_gauge("vllm:num_requests_waiting", text, labels, total(lambda load: load.num_waiting))
    yield labelled_gauge("vllm:kv_cache_usage_perc", text, labels, usage)
    yield labelled_gauge("vllm:cache_config_info", text, ("block_size", "num_gpu_blocks", "engine"), sizes)


class GenerationMeter:
    """Records the metrics of one generation request, which its key has admitted."""

    def __init__(self, metrics: Metrics, record: RequestRecord, route: str) -> None:
        self._metrics = metrics
        self._record = record
        #: Where the deltas of an answer in parts are counted; None if nobody needs it.
        self.tally = record.tally
        self._last_s = record.start_s
        self._first, self._gaps = metrics.ttft[route], metrics.gaps[route]

    def event(self) -> None:
        """Record an event that is about to be sent."""
        now = time.perf_counter()
        if self._record.num_events:
            self._gaps.observe(now - self._last_s)
        else:
            self._first.observe(now - self._last_s)
            note_first_event()
        self._last_s = now
        self._record.num_events += 1

    def finished(self, cost: Cost, ends: Sequence[common_pb2.FinishReason]) -> None:
        """Record the cost of a complete answer, and why its choices ended."""
        usage, metrics = cost.usage, self._metrics
        note_usage(usage, ends)
        self._record.usage = usage
        metrics.tenants.used(self._record.tenant, usage)
        metrics.prompt_tokens.inc(usage.prompt_tokens)
        metrics.cached_tokens.inc(usage.cached_tokens)
        metrics.completion_tokens.inc(usage.completion_tokens)
        metrics.cached_media_tokens.inc(usage.cached_media_tokens)
        for report in cost.media:
            modality = MODALITIES.get(report.modality, "unknown")
            metrics.media_tokens.labels(modality).inc(report.num_tokens)
            metrics.media_items.labels(modality, encoder_cache(report) or "unknown").inc()
