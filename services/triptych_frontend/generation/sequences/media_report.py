"""Reports on the cost of a call's media."""

from __future__ import annotations

from collections.abc import Sequence

from triptych.v1 import engine_pb2, generation_pb2

from triptych_frontend.encoders.encoding import MediaEncoding
from triptych_frontend.media.item import PreparedMedia


def media_reports(
    items: Sequence[PreparedMedia], encoding: MediaEncoding, last: engine_pb2.SequenceOutput | None
) -> list[generation_pb2.MediaReport]:
    """A report on each item, in their order.

    Args:
        last: the engine's last output of a sequence, which says how the engine got the embeddings; None if there was none.
    """
    fetches: Sequence[engine_pb2.MediaFetch] = last.media if last is not None else ()
    reports = []
    for index, item in enumerate(items):
        report = generation_pb2.MediaReport(modality=item.modality, key=item.key, num_tokens=item.expansion.num_embeds)
        encoded = encoding.result_of(item.key)
        if encoded is not None:
            report.tier = encoded.result.tier
            report.encode.CopyFrom(encoded.result.timings)
            report.transfer_s = encoded.transfer_s
        if index < len(fetches):
            report.source, report.fetch_s = fetches[index].source, fetches[index].fetch_s
        reports.append(report)
    return reports
