"""What is known of a request, until it ends."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from triptych.v1 import common_pb2, generation_pb2

#: Characters of an answer per token: OpenAI's rule of thumb.
_CHARACTERS_PER_TOKEN = 4


class Tally:
    """Tokens of the calls of one request, as far as their deltas tell, for an answer that ends without usage.

    Args:
        prompts: expected tokens of each call's prompt. The call's first delta corrects its number.
    """

    def __init__(self, prompts: Iterable[int]) -> None:
        self._prompts = list(prompts)
        #: 0 until the first delta.
        self.num_output_tokens = 0

    def add(self, call: int, delta: generation_pb2.ChoiceDelta) -> None:
        """Count a delta of the call with this index. It has at least one token, and one that waited for its client has many."""
        if delta.HasField("prompt_tokens"):
            self._prompts[call] = delta.prompt_tokens
        # A delta is of one kind.
        num_characters = len(delta.text) + len(delta.reasoning) + len(delta.tool_call.arguments)
        self.num_output_tokens += max(1, len(delta.token_ids), num_characters // _CHARACTERS_PER_TOKEN)

    @property
    def num_tokens(self) -> int:
        """Tokens of the prompts and of the answer."""
        return sum(self._prompts) + self.num_output_tokens


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
