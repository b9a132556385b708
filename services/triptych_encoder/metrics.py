"""The encoder's metrics for Prometheus."""

from __future__ import annotations

import time

from prometheus_client import Metric
from triptych_common.telemetry.metrics import counter, gauge, histogram, labelled_counter, labelled_histogram

from triptych_encoder.pipeline import EncodingPipeline

_PREFIX = "triptych_encoder"


def families(pipeline: EncodingPipeline) -> list[Metric]:
    """The state of the pipeline and the cache. Call it on the event loop, which owns them."""
    cache, counters, seconds, loop = pipeline.cache, pipeline.counters, pipeline.queue.seconds, pipeline.device_loop
    cache.expire(time.monotonic())
    tiers = {
        "local": counters.num_local_hits,
        "shared": counters.num_shared_hits,
        "joined": counters.num_joined,
        "miss": counters.num_misses,
    }
    num_store_failures = pipeline.store.num_failures if pipeline.store is not None else 0
    return [
        labelled_counter(f"{_PREFIX}_items", "Items that were asked for, by where they were found.", "tier", tiers),
        counter(f"{_PREFIX}_failed_items", "Items that could not be encoded.", pipeline.queue.num_failed),
        labelled_counter(f"{_PREFIX}_errors", "Items and fetches that failed.", "reason", counters.errors),
        counter(f"{_PREFIX}_uploaded_bytes", "Bytes of raw files that came with items.", counters.num_uploaded_bytes),
        counter(f"{_PREFIX}_fetched_bytes", "Bytes of tensors that were fetched.", counters.num_fetched_bytes),
        counter(f"{_PREFIX}_evictions", "Items that left the cache.", cache.num_evictions),
        counter(f"{_PREFIX}_store_failures", "Reads and writes of the shared store that failed.", num_store_failures),
        gauge(f"{_PREFIX}_queue_length", "Items that are being encoded or wait for it.", len(pipeline.queue)),
        gauge(f"{_PREFIX}_cache_items", "Items in the cache.", len(cache)),
        gauge(f"{_PREFIX}_cache_used_bytes", "Bytes of embeddings in the cache.", cache.used_bytes),
        gauge(f"{_PREFIX}_cache_capacity_bytes", "Most bytes that the cache may hold.", cache.capacity_bytes),
        gauge(f"{_PREFIX}_cache_leased_bytes", "Bytes that cannot be evicted, as they are leased.", cache.leased_bytes),
        gauge(f"{_PREFIX}_leases", "Leases that have not ended.", cache.num_leases),
        labelled_histogram(f"{_PREFIX}_queue_seconds", "Waits of an item.", "modality", seconds.queue),
        labelled_histogram(f"{_PREFIX}_decode_seconds", "From a file to pixels or samples.", "modality", seconds.decode),
        labelled_histogram(f"{_PREFIX}_preprocess_seconds", "From there to a tower's input.", "modality", seconds.preprocess),
        labelled_histogram(f"{_PREFIX}_encode_seconds", "From there to embeddings.", "modality", seconds.encode),
        histogram(f"{_PREFIX}_batch_size", "Items in a batch of a tower.", loop.batch_size),
        histogram(f"{_PREFIX}_batch_embeddings", "Embeddings of a batch.", loop.batch_embeddings),
        histogram(f"{_PREFIX}_fetch_seconds", "From the request for a key to its last chunk.", counters.fetch),
    ]
