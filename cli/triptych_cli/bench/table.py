"""The figures in the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from triptych_cli.bench.figures import Level, Quantiles
from triptych_cli.printable import printable


def table_of(levels: Sequence[Level]) -> Table:
    """A line for each level, in 80 columns. Times are in milliseconds."""
    has_rates, has_goodput = any(one.rate is not None for one in levels), any(one.goodput is not None for one in levels)
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    heads = ["sent/s" if has_rates else "streams", "req/s", "tok/s", "TTFT p50", "p99", "ITL p50", "p99", "E2EL p50", "p99"]
    for head in [*heads, *(["goodput"] if has_goodput else []), "failed"]:
        table.add_column(head, justify="right", no_wrap=True)
    for one in levels:
        load = f"{one.load:g}" + ("" if one.is_whole else "*")
        times = [text for of in (one.ttft, one.itl, one.e2el) for text in _pair(of)]
        goodput = [] if not has_goodput else ["-" if one.goodput is None else f"{one.goodput:.2f}"]
        table.add_row(load, f"{one.requests_per_s:.2f}", _short(one.output_tokens_per_s), *times, *goodput, str(one.num_failed))
    return table


def notes_of(levels: Sequence[Level]) -> list[str]:
    """What the table leaves out: lengths, units, why requests failed."""
    answered = [one for one in levels if one.num_ok]
    notes = []
    if answered:
        prompts, answers = (_range([getattr(one, name) for one in answered]) for name in ("mean_input_len", "mean_output_len"))
        number = sum(one.num_ok for one in levels)
        notes.append(f"{number} answers of {answers} tokens to prompts of {prompts}; times in ms, tok/s of answers")
    for one in levels:
        notes += [f"{one.load:g}: {count} failed: {printable(why)}" for why, count in one.failures.items()]
    return notes if all(one.is_whole for one in levels) else [*notes, "* not whole"]


def _range(values: Sequence[float]) -> str:
    shortest, longest = round(min(values)), round(max(values))
    return str(shortest) if shortest == longest else f"{shortest} to {longest}"


def _pair(times: Quantiles) -> tuple[str, str]:
    return _short(times.p50), _short(times.p99)


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}" if value < 100 else f"{value:.0f}"
