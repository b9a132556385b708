"""The figures of one level of load. Their names are those of vLLM's `bench serve`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from triptych_cli.load.figures import Answer, count_reasons, percentile_ms

#: The times that an answer may be limited in: to the first token, per further token, in all. In milliseconds.
LIMITS = ("ttft", "tpot", "e2el")


@dataclass(frozen=True)
class Quantiles:
    """In milliseconds; None where nothing was observed."""

    p50: float | None
    p90: float | None
    p99: float | None


@dataclass(frozen=True)
class Level:
    """What was seen under one load.

    Attributes:
        concurrency: streams at once; None with a rate.
        rate: requests a second, at times that do not wait for answers.
        is_whole: False if it was interrupted.
        elapsed_s: from the first request to the last answer.
        mean_input_len, mean_output_len: tokens of an answered request, by the server's usage.
        ttft: time to first token.
        itl: time between two pieces of text of an answer (inter-token latency). A piece may hold several tokens.
        tpot: time per output token after the first, of each answer.
        e2el: time of a whole answer (end-to-end latency).
        goodput: requests a second that kept all limits; None without limits.
    """

    concurrency: int | None
    rate: float | None
    is_whole: bool
    num_ok: int
    num_failed: int
    failures: dict[str, int]
    elapsed_s: float
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    mean_input_len: float
    mean_output_len: float
    ttft: Quantiles
    itl: Quantiles
    tpot: Quantiles
    e2el: Quantiles
    goodput: float | None

    @property
    def load(self) -> float:
        """Concurrency or rate."""
        return float(self.concurrency if self.concurrency is not None else self.rate or 0.0)


def tpot_s(answer: Answer) -> float | None:
    """Seconds per output token after the first; None of a single token."""
    if answer.num_output_tokens < 2 or len(answer.pieces_s) < 2:
        return None
    return (answer.pieces_s[-1] - answer.pieces_s[0]) / (answer.num_output_tokens - 1)


def e2el_s(answer: Answer) -> float:
    """Seconds from sending a request to its last text."""
    return answer.pieces_s[-1] - answer.sent_s


def keeps(answer: Answer, limits: Mapping[str, float]) -> bool:
    """Whether an answer kept all limits, which are in milliseconds."""
    times = {"ttft": answer.ttft_s, "tpot": tpot_s(answer), "e2el": e2el_s(answer)}
    return all((times[name] or 0.0) * 1e3 <= limit for name, limit in limits.items())


def level_of(
    answers: Sequence[Answer],
    failures: Sequence[str],
    elapsed_s: float,
    *,
    limits: Mapping[str, float],
    concurrency: int | None = None,
    rate: float | None = None,
    is_whole: bool = True,
) -> Level:
    """Sum up a level.

    Args:
        failures: why, one per request that failed.
        limits: see `keeps`.
    """
    elapsed_s, num_ok = max(elapsed_s, 1e-9), len(answers)
    num_input, num_output = (sum(getattr(one, f"num_{kind}_tokens") for one in answers) for kind in ("prompt", "output"))
    return Level(
        concurrency=concurrency,
        rate=rate,
        is_whole=is_whole,
        num_ok=num_ok,
        num_failed=len(failures),
        failures=count_reasons(failures),
        elapsed_s=elapsed_s,
        requests_per_s=num_ok / elapsed_s,
        output_tokens_per_s=num_output / elapsed_s,
        total_tokens_per_s=(num_input + num_output) / elapsed_s,
        mean_input_len=num_input / max(1, num_ok),
        mean_output_len=num_output / max(1, num_ok),
        ttft=_quantiles([one.ttft_s for one in answers]),
        itl=_quantiles([gap for one in answers for gap in one.gaps_s]),
        tpot=_quantiles([value for one in answers if (value := tpot_s(one)) is not None]),
        e2el=_quantiles(list(map(e2el_s, answers))),
        goodput=sum(keeps(one, limits) for one in answers) / elapsed_s if limits else None,
    )


def _quantiles(seconds: Sequence[float]) -> Quantiles:
    return Quantiles(*(percentile_ms(seconds, fraction) for fraction in (0.5, 0.9, 0.99)))
