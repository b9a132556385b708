"""The engine's metrics for Prometheus."""

from __future__ import annotations

from prometheus_client import Metric
from triptych_common.telemetry.metrics import counter

from triptych_engine.core import Load

_PREFIX = "triptych_engine"


def families(load: Load) -> list[Metric]:
    """What the engine has counted since it started."""
    return [
        counter(f"{_PREFIX}_cached_tokens", "Prompt tokens that came from the prefix cache.", load.prefix_cache_hits),
        counter(f"{_PREFIX}_preemptions", "Running requests that lost their KV cache to others.", load.num_preemptions),
    ]
