"""What streams are summed up to: one definition of each figure, for every server and for the engine alone."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from histogram import Histogram, histogram

#: Different reasons of failures that are kept, with how often each came.
MAX_REASONS = 5


@dataclass(frozen=True)
class Stream:
    """One request that was answered to its end. Times are wall time, seconds.

    Attributes:
        ttft_s: from sending the request to the first text (or token, where there is no text).
        gaps_s: between one piece of text and the next; a piece may hold several tokens.
    """

    ttft_s: float
    gaps_s: list[float]
    num_prompt_tokens: int
    num_output_tokens: int

    @classmethod
    def of_times(cls, sent_s: float, pieces_s: Sequence[float], num_prompt_tokens: int, num_output_tokens: int) -> Stream:
        """From the times at which the request was sent and each piece came; at least one piece is needed."""
        gaps_s = [after - before for before, after in itertools.pairwise(pieces_s)]
        return cls(pieces_s[0] - sent_s, gaps_s, num_prompt_tokens, num_output_tokens)


@dataclass(frozen=True)
class Figures:
    """One run of a load. Percentiles are None where nothing was observed (a gap needs two pieces of text).

    Attributes:
        ttfts: all of them, as counts.
        gaps: likewise.
    """

    num_ok: int
    num_failed: int
    failures: dict[str, int]
    elapsed_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    output_tokens_per_s: float
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    gap_p50_ms: float | None
    gap_p99_ms: float | None
    ttfts: Histogram
    gaps: Histogram


@dataclass(frozen=True)
class Answer:
    """One answer of a stream that sends its next request when its last has ended. Points in time, seconds of one clock."""

    sent_s: float
    pieces_s: list[float]
    num_output_tokens: int


@dataclass(frozen=True)
class Window:
    """What some streams did between two points in time.

    Attributes:
        gap_p50_ms: between two pieces of one answer, as all gaps; of those that began or ended in the window.
        silence_max_ms: the longest time in which a stream showed nothing new, the wait for its next answer included.
    """

    seconds: float
    output_tokens_per_s: float
    gap_p50_ms: float | None
    gap_p99_ms: float | None
    gap_max_ms: float | None
    silence_max_ms: float | None


def in_window(streams: Sequence[Sequence[Answer]], start_s: float, end_s: float) -> Window:
    """Cut a window out of streams that began before it and ended after it; each a sequence of answers.

    An answer's tokens count by the share of its pieces that came within the window: a piece may hold several tokens.
    """
    gaps, silences, num_tokens = [], [], 0.0
    for stream in streams:
        for answer in stream:
            gaps += _overlapping(answer.pieces_s, start_s, end_s)
            num_inside = sum(start_s <= piece_s <= end_s for piece_s in answer.pieces_s)
            num_tokens += answer.num_output_tokens * num_inside / len(answer.pieces_s)
        silences += _overlapping([piece_s for answer in stream for piece_s in answer.pieces_s], start_s, end_s)
    return Window(
        seconds=end_s - start_s,
        output_tokens_per_s=num_tokens / (end_s - start_s),
        gap_p50_ms=_ms(percentile(gaps, 0.5)),
        gap_p99_ms=_ms(percentile(gaps, 0.99)),
        gap_max_ms=_ms(percentile(gaps, 1.0)),
        silence_max_ms=_ms(percentile(silences, 1.0)),
    )


def _overlapping(pieces_s: Sequence[float], start_s: float, end_s: float) -> list[float]:
    """The gaps of which some part lies in the window."""
    return [after - before for before, after in itertools.pairwise(pieces_s) if after >= start_s and before <= end_s]


def percentile(values: Sequence[float], fraction: float) -> float | None:
    """The smallest value that at least this fraction of all values does not exceed (nearest rank)."""
    if not values:
        return None
    rank = math.ceil(fraction * len(values) - 1e-9)  # 0.56 of 25 are 14, whatever the product's last bit says
    return sorted(values)[max(0, rank - 1)]


def summarize(streams: Sequence[Stream], failures: Sequence[str], elapsed_s: float) -> Figures:
    """Sum up one run.

    Args:
        failures: why, one per request that failed; such a request adds no tokens, but its time is in the elapsed.
        elapsed_s: from the first request to the last answer.
    """
    ttfts = [stream.ttft_s for stream in streams]
    gaps = [gap for stream in streams for gap in stream.gaps_s]
    num_output_tokens = sum(stream.num_output_tokens for stream in streams)
    return Figures(
        num_ok=len(streams),
        num_failed=len(failures),
        failures=dict(Counter(failures).most_common(MAX_REASONS)),
        elapsed_s=elapsed_s,
        num_prompt_tokens=sum(stream.num_prompt_tokens for stream in streams),
        num_output_tokens=num_output_tokens,
        output_tokens_per_s=num_output_tokens / elapsed_s,
        ttft_p50_ms=_ms(percentile(ttfts, 0.5)),
        ttft_p99_ms=_ms(percentile(ttfts, 0.99)),
        gap_p50_ms=_ms(percentile(gaps, 0.5)),
        gap_p99_ms=_ms(percentile(gaps, 0.99)),
        ttfts=histogram(ttfts),
        gaps=histogram(gaps),
    )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3
