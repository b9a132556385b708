"""What clients saw, summed up in the same way for a real run and a simulated one."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from triptych_cli.load.figures import percentile_ms


@dataclass(slots=True)
class Record:
    """One request, as its client saw it. Times are seconds since the start of the run.

    Attributes:
        longest_gap_s: between two pieces of text.
    """

    conversation: int
    turn: int
    sent_s: float
    num_prompt_tokens: int
    first_s: float = 0.0
    last_s: float = 0.0
    num_output_tokens: int = 0
    longest_gap_s: float = 0.0
    error: str = ""

    @property
    def ttft_s(self) -> float:
        return self.first_s - self.sent_s

    @property
    def token_s(self) -> float:
        """Mean time between two tokens (TPOT); 0 of an answer of one token."""
        return (self.last_s - self.first_s) / max(1, self.num_output_tokens - 1)

    def got(self, now_s: float, num_tokens: int) -> None:
        """Tokens have come."""
        if not self.num_output_tokens:
            self.first_s = now_s
        else:
            self.longest_gap_s = max(self.longest_gap_s, now_s - self.last_s)
        self.last_s = now_s
        self.num_output_tokens += num_tokens


@dataclass(frozen=True)
class Limits:
    """A request counts for goodput if its TTFT and its mean time between tokens are within these, in seconds.

    Goodput is that of DistServe (Zhong et al., OSDI 2024): what is served within the limits, per second.
    """

    ttft_s: float = 1.0
    token_s: float = 0.1


def summarize(records: Sequence[Record], num_hits: int, num_queries: int, limits: Limits) -> dict:
    """Figures of one run; rates are over the time from its start to its last token."""
    ended = [one for one in records if not one.error]
    end_s = max((one.last_s for one in ended), default=0.0)
    good = [one for one in ended if one.ttft_s <= limits.ttft_s and one.token_s <= limits.token_s]
    ttfts, tokens = [one.ttft_s for one in ended], [one.token_s for one in ended]
    return {
        "num_requests": len(records),
        "num_failed": len(records) - len(ended),
        "seconds": end_s,
        "goodput_per_s": len(good) / end_s if end_s else 0.0,
        "good_share": len(good) / len(records) if records else 0.0,
        "tokens_per_s": sum(one.num_output_tokens for one in ended) / end_s if end_s else 0.0,
        "prompt_tokens": sum(one.num_prompt_tokens for one in records),
        "hits": num_hits / num_queries if num_queries else 0.0,
        "ttft_p50_ms": percentile_ms(ttfts, 0.5),
        "ttft_p99_ms": percentile_ms(ttfts, 0.99),
        "ttft_mean_ms": 1e3 * statistics.fmean(ttfts) if ttfts else None,
        "token_p50_ms": percentile_ms(tokens, 0.5),
        "token_p99_ms": percentile_ms(tokens, 0.99),
        "longest_gap_p99_ms": percentile_ms([one.longest_gap_s for one in ended], 0.99),
    }
