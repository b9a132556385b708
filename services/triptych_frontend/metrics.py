"""The frontend's metrics for Prometheus."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from prometheus_client import Metric
from triptych_common.cluster.pool import Pool
from triptych_common.telemetry.metrics import counter, gauge, labelled_counter, labelled_histogram

from triptych_frontend.encoders.client import EncoderClient
from triptych_frontend.encoders.pool import EncoderPool
from triptych_frontend.engines.connection import EngineConnection
from triptych_frontend.engines.placement import Cause
from triptych_frontend.generation.statistics import CallStatistics
from triptych_frontend.media.preparer import MediaPreparer

_PREFIX = "triptych_frontend"
_TIERS = ("local", "shared", "joined", "miss")
#: From the mildest fallback to the last, see encoders.client and generation.sequences.media_call.
_FALLBACKS = ("same_encoder", "other_encoder", "again", "resubmitted", "failed")


@dataclass(frozen=True)
class FrontendMetrics:
    """Reads what the frontend has counted since it started. Call it on the event loop, which owns the counts."""

    calls: CallStatistics
    engines: Pool[EngineConnection]
    num_moved: Counter[Cause]
    encoders: EncoderPool
    encoder_client: EncoderClient
    media: MediaPreparer

    def families(self) -> list[Metric]:
        """All metrics of the frontend."""
        return [
            gauge(f"{_PREFIX}_engines_connected", "Engines that take requests.", len(self.engines.ready)),
            gauge(f"{_PREFIX}_encoders_connected", "Encoders that can be used.", len(self.encoders.ready)),
            labelled_counter(f"{_PREFIX}_moved_sequences", "Sequences sent to another engine.", "cause", self.num_moved),
            *self._calls(),
            *self._media(),
        ]

    def _calls(self) -> list[Metric]:
        calls = self.calls
        return [
            labelled_counter(f"{_PREFIX}_calls", "Calls that have ended.", ("task", "outcome"), calls.num_calls),
            labelled_counter(f"{_PREFIX}_prompt_tokens", "Prompt tokens of ended calls.", "task", calls.num_prompt_tokens),
            labelled_counter(f"{_PREFIX}_cached_tokens", "Those from the prefix cache.", "task", calls.num_cached_tokens),
            labelled_counter(f"{_PREFIX}_completion_tokens", "Output tokens of ended calls.", "task", calls.num_completion_tokens),
            labelled_histogram(f"{_PREFIX}_call_seconds", "From arrival to the end.", "task", calls.call),
            labelled_histogram(f"{_PREFIX}_time_to_first_token_seconds", "From arrival to a token.", "task", calls.first_token),
            labelled_histogram(f"{_PREFIX}_inter_token_seconds", "Between two tokens of a choice.", "task", calls.gaps),
            labelled_histogram(f"{_PREFIX}_queue_seconds", "The wait in the engine.", "task", calls.queue),
            labelled_histogram(f"{_PREFIX}_preprocess_seconds", "Work before the engine.", "task", calls.preprocess),
        ]

    def _media(self) -> list[Metric]:
        counts, fetcher = self.encoder_client.counts, self.media.fetcher
        tiers, fallbacks = ({name: counts[name] for name in names} for names in (_TIERS, _FALLBACKS))
        seconds = self.encoder_client.seconds
        return [
            labelled_counter(f"{_PREFIX}_media_items", "Media items, by where their encoder found them.", "tier", tiers),
            labelled_histogram(f"{_PREFIX}_media_encode_seconds", "From a request to its encoder's answer.", "tier", seconds),
            counter(f"{_PREFIX}_media_uploads", "Media items whose bytes were sent to an encoder.", counts["bytes_sent"]),
            labelled_counter(f"{_PREFIX}_media_fallbacks", "Attempts after the first for media.", "step", fallbacks),
            labelled_histogram(f"{_PREFIX}_media_fetch_seconds", "Fetches of media by URL.", "scheme", fetcher.seconds),
            labelled_counter(f"{_PREFIX}_media_fetch_failures", "Fetches that failed.", "scheme", fetcher.num_failures),
            gauge(f"{_PREFIX}_media_live_bytes", "Bytes of media files that live calls hold.", self.media.budget.used_bytes),
            counter(f"{_PREFIX}_media_uuid_corrections", "Names that came with other bytes.", self.media.aliases.num_corrections),
        ]
