"""The engine's metrics for Prometheus, and the names that autoscalers, endpoint pickers and dashboards know from vLLM."""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client import Metric
from triptych_common.telemetry.metrics import counter, gauge, histogram, labelled_counter

from triptych_engine.core import EngineCore
from triptych_engine.kv_events.batches import KVEventBatches
from triptych_engine.kv_transfer.sharing import BlockSharing
from triptych_engine.media.fetcher import FetchStatistics
from triptych_engine.media.item import EmbeddingSource
from triptych_engine.scheduling.request import FinishReason
from triptych_engine.scheduling.scheduler import Scheduler
from triptych_engine.scheduling.statistics import RequestStatistics

_PREFIX = "triptych_engine"
#: vLLM numbers its engines; this process has one.
_ENGINE = "0"


@dataclass(frozen=True)
class EngineMetrics:
    """Reads what the engine has counted since it started. Call it on the event loop.

    Args:
        embedding_bytes: bytes of one embedding in the engine's memory.
        kv_events: None if they are off.
        sharing: the second tier of the prefix cache; None if there is none.
    """

    core: EngineCore
    scheduler: Scheduler
    requests: RequestStatistics
    fetches: FetchStatistics
    model_name: str
    embedding_bytes: int
    kv_events: KVEventBatches | None = None
    sharing: BlockSharing | None = None

    def families(self) -> list[Metric]:
        """All metrics of the engine."""
        return [*self._gauges(), *self._counters(), *self._histograms(), *self._offloading(), *self._aliases()]

    @property
    def _kv_cache_usage(self) -> float:
        load = self.core.load
        return 1 - load.num_free_blocks / load.num_blocks

    def _ended(self) -> dict[str, int]:
        return {reason.value: self.requests.num_ended[reason.value] for reason in FinishReason}

    def _gauges(self) -> list[Metric]:
        load, cache, size = self.core.load, self.scheduler.embeddings, self.embedding_bytes
        return [
            gauge(f"{_PREFIX}_running_requests", "Sequences in the batch.", load.num_running),
            gauge(f"{_PREFIX}_waiting_requests", "Sequences that wait for blocks or embeddings.", load.num_waiting),
            gauge(f"{_PREFIX}_kv_cache_usage_ratio", "Share of the KV cache blocks that sequences hold.", self._kv_cache_usage),
            gauge(f"{_PREFIX}_kv_cache_blocks", "KV cache blocks in all.", load.num_blocks),
            gauge(f"{_PREFIX}_kv_cache_block_tokens", "Tokens per KV cache block.", load.block_size),
            gauge(f"{_PREFIX}_embedding_cache_used_bytes", "Embeddings held or being fetched.", cache.used_tokens * size),
            gauge(f"{_PREFIX}_embedding_cache_capacity_bytes", "Most of these.", cache.capacity_tokens * size),
            gauge(f"{_PREFIX}_embedding_cache_kept_bytes", "Embeddings kept for preempted requests.", cache.kept_tokens * size),
        ]

    def _counters(self) -> list[Metric]:
        load, requests, fetches = self.core.load, self.requests, self.fetches
        steps, events = self.scheduler.statistics, self.kv_events
        sources = {source.value: requests.num_media[source.value] for source in EmbeddingSource}
        return [
            labelled_counter(f"{_PREFIX}_requests", "Sequences that have ended.", "finish_reason", self._ended()),
            labelled_counter(f"{_PREFIX}_errors", "Sequences that failed or were refused.", "reason", requests.num_errors),
            counter(f"{_PREFIX}_prompt_tokens", "Prompt tokens of admitted sequences.", load.prefix_cache_queries),
            counter(f"{_PREFIX}_cached_tokens", "Prompt tokens that came from the prefix cache.", load.prefix_cache_hits),
            counter(f"{_PREFIX}_generation_tokens", "Output tokens.", load.num_generated_tokens),
            counter(f"{_PREFIX}_draft_tokens", "Tokens that were guessed and verified.", steps.num_draft_tokens),
            counter(f"{_PREFIX}_accepted_tokens", "Draft tokens that were right.", steps.num_accepted_tokens),
            counter(f"{_PREFIX}_preemptions", "Running requests that lost their KV cache to others.", load.num_preemptions),
            counter(f"{_PREFIX}_worker_restarts", "Worker processes that were replaced.", self.core.num_restarts),
            labelled_counter(f"{_PREFIX}_media_items", "Media items, by where their embeddings were found.", "source", sources),
            counter(f"{_PREFIX}_embedding_fetch_failures", "Fetches from encoders that failed.", fetches.num_failures),
            counter(f"{_PREFIX}_embedding_fetched_bytes", "Bytes of embeddings from encoders.", fetches.num_bytes),
            counter(f"{_PREFIX}_kv_event_batches", "Batches of KV events.", events.num_batches if events else 0),
            counter(f"{_PREFIX}_kv_event_batches_dropped", "Batches for slow gRPC streams.", events.num_dropped if events else 0),
            counter(f"{_PREFIX}_kv_event_replays", "Replays that subscribers asked for.", events.num_replays if events else 0),
        ]

    def _histograms(self) -> list[Metric]:
        steps, requests = self.scheduler.statistics, self.requests
        return [
            histogram(f"{_PREFIX}_time_to_first_token_seconds", "From arrival to the first token.", steps.first_token),
            histogram(f"{_PREFIX}_inter_token_seconds", "Between two tokens of a sequence.", steps.gaps),
            histogram(f"{_PREFIX}_request_seconds", "From arrival to the end.", requests.request),
            histogram(f"{_PREFIX}_queue_seconds", "From arrival to the first admission.", steps.queue),
            histogram(f"{_PREFIX}_prefill_seconds", "From the first admission to the first token.", requests.prefill),
            histogram(f"{_PREFIX}_decode_seconds", "From the first token to the end.", requests.decode),
            histogram(f"{_PREFIX}_step_seconds", "Duration of a step.", steps.step),
            histogram(f"{_PREFIX}_batch_size", "Sequences in a step.", steps.batch_size),
            histogram(f"{_PREFIX}_step_tokens", "Tokens that a step computed.", steps.step_tokens),
            histogram(f"{_PREFIX}_embedding_fetch_seconds", "From an order to its embeddings.", self.fetches.seconds),
        ]

    def _offloading(self) -> list[Metric]:
        if self.sharing is None or (tier := self.sharing.tier) is None:
            return []
        counts = tier.statistics
        metrics = [
            gauge(f"{_PREFIX}_offload_blocks", "Blocks that the second tier of the prefix cache holds.", tier.num_used),
            gauge(f"{_PREFIX}_offload_capacity_blocks", "Most of these.", tier.num_slots),
            counter(f"{_PREFIX}_offload_stored_blocks", "Blocks that came into the second tier.", counts.num_stored),
            counter(f"{_PREFIX}_offload_loaded_blocks", "Blocks that were loaded from it.", counts.num_loaded),
            counter(f"{_PREFIX}_offload_corrupt_blocks", "Blocks whose bytes were not as they had been.", counts.num_corrupt),
        ]
        metrics.append(counter(f"{_PREFIX}_kv_held_blocks", "Blocks held for other engines.", self.sharing.servicer.num_blocks))
        metrics.append(counter(f"{_PREFIX}_kv_sent_bytes", "Bytes sent to other engines.", self.sharing.servicer.num_bytes))
        if (fetcher := self.sharing.fetcher) is not None:
            fetched = fetcher.statistics
            metrics += [
                histogram(f"{_PREFIX}_kv_fetch_seconds", "From a request to the blocks that another engine has.", fetched.seconds),
                counter(f"{_PREFIX}_kv_fetched_blocks", "Blocks from other engines.", fetched.num_blocks),
                counter(f"{_PREFIX}_kv_fetched_bytes", "Their bytes.", fetched.num_bytes),
                labelled_counter(
                    f"{_PREFIX}_kv_fetch_failures", "Prompts computed here all the same.", "reason", dict(fetched.failures)
                ),
            ]
            if (disk := fetcher.disk) is not None:
                counts_of_disk = {
                    "stored": disk.num_stored, "loaded": disk.num_loaded, "corrupt": disk.num_corrupt, "dropped": disk.num_dropped
                }  # fmt: skip
                metrics.append(gauge(f"{_PREFIX}_disk_blocks", "Blocks on disk.", disk.num_blocks))
                metrics.append(
                    labelled_counter(f"{_PREFIX}_disk_block_events", "Blocks, by what became of them.", "event", counts_of_disk)
                )
        return metrics

    def _aliases(self) -> list[Metric]:
        load, steps, requests = self.core.load, self.scheduler.statistics, self.requests
        names = {"model_name": self.model_name, "engine": _ENGINE}
        cache = {"block_size": str(load.block_size), "num_gpu_blocks": str(load.num_blocks), "engine": _ENGINE}
        text = "As in vLLM."
        return [
            gauge("vllm:num_requests_running", text, load.num_running, **names),
            gauge("vllm:num_requests_waiting", text, load.num_waiting, **names),
            gauge("vllm:kv_cache_usage_perc", text, self._kv_cache_usage, **names),
            gauge("vllm:cache_config_info", text, 1, **cache),
            counter("vllm:prompt_tokens", text, load.prefix_cache_queries, **names),
            counter("vllm:generation_tokens", text, load.num_generated_tokens, **names),
            counter("vllm:num_preemptions", text, load.num_preemptions, **names),
            counter("vllm:spec_decode_num_draft_tokens", text, steps.num_draft_tokens, **names),
            counter("vllm:spec_decode_num_accepted_tokens", text, steps.num_accepted_tokens, **names),
            counter("vllm:prefix_cache_queries", text, load.prefix_cache_queries, **names),
            counter("vllm:prefix_cache_hits", text, load.prefix_cache_hits, **names),
            labelled_counter("vllm:request_success", text, "finished_reason", self._ended(), **names),
            histogram("vllm:time_to_first_token_seconds", text, steps.first_token, **names),
            histogram("vllm:inter_token_latency_seconds", text, steps.gaps, **names),
            histogram("vllm:e2e_request_latency_seconds", text, requests.request, **names),
            histogram("vllm:request_queue_time_seconds", text, steps.queue, **names),
            histogram("vllm:request_prefill_time_seconds", text, requests.prefill, **names),
            histogram("vllm:request_decode_time_seconds", text, requests.decode, **names),
            histogram("vllm:iteration_tokens_total", text, steps.step_tokens, **names),
        ]
