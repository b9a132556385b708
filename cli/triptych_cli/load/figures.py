"""What answers are summed up to: one definition of each figure, for every server and for the engine alone."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

#: Different reasons of failures that are kept, with how often each came.
MAX_REASONS = 5


@dataclass(frozen=True)
class Answer:
    """A request that was answered to its end. Points in time are seconds of one clock.

    Attributes:
        pieces_s: when each piece of text came (or token, where there is no text); a piece may hold several tokens.
        usage: as OpenAI's.
        extension: what Triptych adds to an answer.
    """

    sent_s: float
    pieces_s: list[float]
    num_prompt_tokens: int
    num_output_tokens: int
    usage: dict[str, Any] = field(default_factory=dict)
    extension: dict[str, Any] = field(default_factory=dict)

    @property
    def ttft_s(self) -> float:
        return self.pieces_s[0] - self.sent_s

    @property
    def gaps_s(self) -> list[float]:
        return [after - before for before, after in itertools.pairwise(self.pieces_s)]


@dataclass(frozen=True)
class Figures:
    """One run of a load. Percentiles are None where nothing was observed (a gap needs two pieces of text).

    Attributes:
        gap_p50_ms: gaps between two pieces of text of one answer, also called inter-token latency (ITL).
        messages_per_token: less than 1 where the server joined several tokens into one piece of text.
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
    messages_per_token: float


def summarize(answers: Sequence[Answer], failures: Sequence[str], elapsed_s: float) -> Figures:
    """Sum up one run.

    Args:
        failures: why, one per request that failed; such a request adds no tokens, but its time is in the elapsed.
        elapsed_s: from the first request to the last answer.
    """
    ttfts = [answer.ttft_s for answer in answers]
    gaps = [gap for answer in answers for gap in answer.gaps_s]
    num_output_tokens = sum(answer.num_output_tokens for answer in answers)
    return Figures(
        num_ok=len(answers),
        num_failed=len(failures),
        failures=count_reasons(failures),
        elapsed_s=elapsed_s,
        num_prompt_tokens=sum(answer.num_prompt_tokens for answer in answers),
        num_output_tokens=num_output_tokens,
        output_tokens_per_s=num_output_tokens / elapsed_s,
        ttft_p50_ms=percentile_ms(ttfts, 0.5),
        ttft_p99_ms=percentile_ms(ttfts, 0.99),
        gap_p50_ms=percentile_ms(gaps, 0.5),
        gap_p99_ms=percentile_ms(gaps, 0.99),
        messages_per_token=(len(ttfts) + len(gaps)) / max(1, num_output_tokens),
    )


def count_reasons(failures: Sequence[str]) -> dict[str, int]:
    """The commonest reasons, and how often each came."""
    return dict(Counter(failures).most_common(MAX_REASONS))


def in_window(streams: Sequence[Sequence[Answer]], start_s: float, end_s: float) -> dict[str, float | None]:
    """Cut a window out of streams that began before it and ended after it; each a sequence of answers.

    An answer's tokens count by the share of its pieces that came within the window: a piece may hold several tokens. Gaps are those
    of which some part lies in the window.
    """
    gaps, num_tokens = [], 0.0
    for stream in streams:
        for answer in stream:
            pairs = itertools.pairwise(answer.pieces_s)
            gaps += [after - before for before, after in pairs if after >= start_s and before <= end_s]
            num_inside = sum(start_s <= piece_s <= end_s for piece_s in answer.pieces_s)
            num_tokens += answer.num_output_tokens * num_inside / len(answer.pieces_s)
    return {
        "seconds": end_s - start_s,
        "output_tokens_per_s": num_tokens / (end_s - start_s),
        "gap_p50_ms": percentile_ms(gaps, 0.5),
        "gap_p99_ms": percentile_ms(gaps, 0.99),
        "gap_max_ms": percentile_ms(gaps, 1.0),
    }


def percentile(values: Sequence[float], fraction: float) -> float | None:
    """The smallest value that at least this fraction of all values does not exceed (nearest rank)."""
    if not values:
        return None
    rank = math.ceil(fraction * len(values) - 1e-9)  # 0.56 of 25 are 14, whatever the product's last bit says
    return sorted(values)[max(0, rank - 1)]


def percentile_ms(seconds: Sequence[float], fraction: float) -> float | None:
    """The same of times, in milliseconds."""
    value = percentile(seconds, fraction)
    return None if value is None else value * 1e3
