"""Prometheus metrics of what each tenant uses."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, disable_created_metrics
from triptych.v1 import common_pb2

disable_created_metrics()
#: Labels that no tenant can have as its name: of callers without a tenant, and of all tenants beyond the limit.
NO_TENANT, OTHER_TENANTS = "(none)", "(other)"


class TenantMetrics:
    """Counts requests, tokens and refusals of tenants.

    Args:
        max_tenants: as many tenants have series of their own: the first ones that send a request. The others share one.
    """

    def __init__(self, registry: CollectorRegistry, max_tenants: int) -> None:
        self._max_tenants = max_tenants
        self._names: set[str] = set()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"triptych_gateway_tenant_{name}", text, ("tenant", *labels), registry=registry)

        self._requests = counter("requests", "Requests, and turns on WebSockets, of each tenant.")
        self._prompt_tokens = counter("prompt_tokens", "Prompt tokens of finished requests.")
        self._completion_tokens = counter("completion_tokens", "Output tokens of finished requests.")
        self._refused = counter("refused", "Requests refused with 429, by what there was too little of.", "resource")

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
