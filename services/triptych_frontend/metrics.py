"""The frontend's metrics for Prometheus."""

from __future__ import annotations

from prometheus_client import Metric
from triptych_common.cluster.pool import Pool
from triptych_common.telemetry.metrics import counter, gauge, labelled_counter

from triptych_frontend.encoders.client import EncoderClient
from triptych_frontend.encoders.pool import EncoderPool
from triptych_frontend.engines.connection import EngineConnection
from triptych_frontend.media.aliases import UuidAliases
from triptych_frontend.media.budget import MediaBudget

_PREFIX = "triptych_frontend"
_TIERS = ("local", "shared", "joined", "miss")
#: From the mildest step to the last, see encoders.client and generation.media_call.
_RUNGS = ("same_encoder", "other_encoder", "again", "resubmitted", "failed")


def families(
    engines: Pool[EngineConnection],
    pool: EncoderPool,
    encoders: EncoderClient,
    aliases: UuidAliases,
    budget: MediaBudget,
) -> list[Metric]:
    """The state of engines, encoders and media. Call it on the event loop, which owns them."""
    counts = encoders.counts
    tiers, rungs = ({name: counts[name] for name in names} for names in (_TIERS, _RUNGS))
    return [
        gauge(f"{_PREFIX}_engines_connected", "Engines that take requests.", len(engines.ready)),
        gauge(f"{_PREFIX}_encoders_connected", "Encoders that can be used.", len(pool.ready)),
        labelled_counter(f"{_PREFIX}_media_items", "Media items, by where their encoder found them.", "tier", tiers),
        gauge(f"{_PREFIX}_media_live_bytes", "Bytes of media files that live calls hold.", budget.used_bytes),
        counter(f"{_PREFIX}_media_uploads", "Media items whose bytes were sent to an encoder.", counts["bytes_sent"]),
        labelled_counter(f"{_PREFIX}_media_rungs", "Steps of the failure ladder that were taken for media.", "rung", rungs),
        counter(
            f"{_PREFIX}_media_uuid_corrections", "Names (uuid) that came with other bytes than before.", aliases.num_corrections
        ),
    ]
