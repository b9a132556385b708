"""What is known of a request, until it ends."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from triptych.v1 import common_pb2

from triptych_gateway.tally import Tally


@dataclass
class RequestRecord:
    """Facts about a request, for the access log and the metrics. Complete when the request has ended."""

    request_id: str
    start_s: float = field(default_factory=time.perf_counter)
    status: int = 0
    is_aborted: bool = False
    #: The code of the error that was answered, and of the error that ended the stream.
    error: str = ""
    stream_error: str = ""
    usage: common_pb2.Usage | None = None
    num_events: int = 0
    #: Counts the tokens of an answer in parts. None if its key has no limit of tokens.
    tally: Tally | None = None
    #: The key that it came with, and whose data it may see. Empty for requests without a key.
    key_id: str = ""
    tenant: str = ""
    #: The model that it names.
    model: str = ""
    #: Why it was refused, if that was because of its key.
    refusal: str = ""
    #: What there was too little of for it. Empty if it was not refused with 429.
    refused_resource: str = ""
    #: Headers of the answer that say how much the key may still do.
    rate_headers: dict[bytes, bytes] = field(default_factory=dict)

    @property
    def duration_ms(self) -> float:
        """Time since it began, in milliseconds."""
        return round((time.perf_counter() - self.start_s) * 1e3, 1)

    def line(self, what: str) -> str:
        """A line of the access log.

        Args:
            what: the client asked for.
        """
        # A request for vectors generates none.
        tokens = f" {self.usage.completion_tokens} tokens" if self.usage and self.usage.completion_tokens else ""
        key = f" key {self.key_id}" if self.key_id else ""
        end = " aborted by the client" if self.is_aborted else f" {self.stream_error}" if self.stream_error else ""
        return f"{what} {self.status} {self.duration_ms:.1f} ms{tokens}{key}{end}"
