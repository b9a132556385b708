"""The cost of a request, over all its frontend calls."""

from __future__ import annotations

from dataclasses import dataclass, field

from triptych.v1 import common_pb2, generation_pb2


@dataclass
class Cost:
    """Sums the usage of all calls. The last response of each call adds to it."""

    #: Sum over the calls.
    usage: common_pb2.Usage = field(default_factory=common_pb2.Usage)
    #: Timings of the slowest call; None if no call reported them.
    timings: common_pb2.Timings | None = None
    #: Reports on media items, in the order of the messages.
    media: list[generation_pb2.MediaReport] = field(default_factory=list)

    def add(self, response: generation_pb2.GenerationCallResponse) -> None:
        """Add a response. Only the last response of each call has a usage."""
        if not response.HasField("usage"):
            return
        for count in common_pb2.Usage.DESCRIPTOR.fields:
            setattr(self.usage, count.name, getattr(self.usage, count.name) + getattr(response.usage, count.name))
        if response.HasField("timings") and (self.timings is None or _seconds(response.timings) > _seconds(self.timings)):
            self.timings = response.timings
        self.media.extend(response.media)


def _seconds(timings: common_pb2.Timings) -> float:
    return timings.preprocess_s + timings.queue_s + timings.prefill_s + timings.decode_s
