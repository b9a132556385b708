"""Tables and charts of what benchmarks/streams.py measured."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from charts import Chart, Line, LineChart
from tables import distinct, median, origin, table

#: What of a token's cost grows with the number of connections; the engine's is its model.
SERVICES = ("gateway", "frontend")
#: Growth is told from here to the most streams.
FROM_STREAMS = 64
_ALONE = "Alone: with a fake behind it that brings tokens as fast as the table says."


def render(results: dict, source: str) -> str:
    """The whole stack, then gateway and frontend with a fake behind them."""
    parts = [origin(results, source, _load(results["load"])), _stack(results["runs"])]
    if results["overheads"]:
        parts.append(_fakes(results))
    return "\n\n".join(parts)


def charts(results: dict) -> dict[str, Chart]:
    """What a token costs, by the number of streams."""
    runs, overheads = results["runs"], results["overheads"]
    streams = _streams(runs)
    ticks = tuple((float(count), f"{count:,}") for count in streams)
    lines = [Line(service, _costs(runs, service)) for service in SERVICES]
    for service in SERVICES:
        alone = [(one["streams"], one["cpu_us_per_token"]) for one in overheads if one["service"] == service]
        if alone:
            lines.append(Line(f"{service} alone", alone, kin=service))
    return {
        "cpu": LineChart(
            "Processor time of gateway and frontend per output token",
            "concurrent streams",
            "microseconds of CPU per token",
            lines,
            x_ticks=ticks,
            log_x=True,
            about=_ALONE if overheads else "",
        ),
        "wall": LineChart(
            "Wall time per output token, of all streams together",
            "concurrent streams",
            "ms per token",
            [Line("whole stack", [(count, us / 1e3) for count, us in _wall_us(runs)])],
            x_ticks=ticks,
            log_x=True,
            log_y=True,
        ),
    }


def growth(costs: Sequence[tuple[int, float]], start: int = FROM_STREAMS) -> float | None:
    """How many times as much a token costs with the most streams as with `start`; None where there are not both."""
    by_streams = dict(costs)
    most = max(by_streams, default=0)
    return by_streams[most] / by_streams[start] if start in by_streams and most > start else None


def _load(load: dict) -> str:
    return (
        f"{load['model']}, prompts of {load['prompt_words']} words, {load['max_tokens']} output tokens, one request per stream but"
        f" at least {load['min_requests']}, {load['repeats']} rounds; fakes: {load['fake_tokens']} tokens per stream,"
        f" {load['tokens_per_s']:,.0f} tokens/s in all"
    )


def _streams(runs: Sequence[dict]) -> list[int]:
    return distinct(run["streams"] for run in runs)


def _costs(runs: Sequence[dict], *services: str) -> list[tuple[int, float]]:
    """(streams, microseconds of CPU of these services per token)."""
    return _medians(runs, lambda run: sum(run["cpu_us_per_token"][name] for name in services))


def _wall_us(runs: Sequence[dict]) -> list[tuple[int, float]]:
    """(streams, microseconds per token of all streams together)."""
    return _medians(runs, lambda run: run["wall_us_per_token"])


def _medians(runs: Sequence[dict], figure: Callable[[dict], float]) -> list[tuple[int, float]]:
    """(streams, median of the rounds)."""
    return [(count, statistics.median(figure(run) for run in runs if run["streams"] == count)) for count in _streams(runs)]


def _stack(runs: Sequence[dict]) -> str:
    head = ["streams", "ended", "lost", "wall, us per token", *(f"{name}, us of CPU per token" for name in (*SERVICES, "engine"))]
    head += ["TTFT p50, s", "TTFT p99, s", "gap p50, ms", "gap p99, ms", "gateway, MB", "frontend, MB"]
    rows, wall = [], dict(_wall_us(runs))
    for count in _streams(runs):
        own = [run for run in runs if run["streams"] == count]
        row = [f"{count:,}", str(sum(run["figures"]["num_ok"] for run in own)), str(sum(run["num_lost"] for run in own))]
        row.append(f"{wall[count]:.0f}")
        row += [median((run["cpu_us_per_token"][name] for run in own), 0) for name in (*SERVICES, "engine")]
        row += [median(_seconds(run["figures"][key]) for run in own) for key in ("ttft_p50_ms", "ttft_p99_ms")]
        row += [median((run["figures"][key] for run in own), 0) for key in ("gap_p50_ms", "gap_p99_ms")]
        row += [f"{max(run['resident'][name] for run in own) / 1e6:.0f}" for name in SERVICES]
        rows.append(row)
    factors = {"wall time": growth(_wall_us(runs)), "CPU of gateway and frontend": growth(_costs(runs, *SERVICES))}
    told = [f"{label} {factor:.2f} times" for label, factor in factors.items() if factor is not None]
    most = max(_streams(runs))
    after = f"\n\nPer token, from {FROM_STREAMS} to {most:,} streams: {', '.join(told)}." if told else ""
    return f"### Streams of the whole stack\n\n{table(head, rows)}{after}"


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1e3


def _fakes(results: dict) -> str:
    head = ["streams", "service", "us of CPU per token", "tokens/s", "messages per token", "idle, MB", "peak, MB"]
    rows, told = [], []
    for service in SERVICES:
        own = [one for one in results["overheads"] if one["service"] == service]
        for one in own:
            cells = [f"{one['cpu_us_per_token']:.1f}", f"{one['tokens_per_s']:.0f}", f"{one['messages_per_token']:.2f}"]
            rows.append([f"{one['streams']:,}", service, *cells, f"{one['idle_mb']:.0f}", f"{one['peak_mb']:.0f}"])
        factor = growth([(one["streams"], one["cpu_us_per_token"]) for one in own])
        if factor is not None:
            told.append(f"{service} {factor:.2f} times")
    after = f"\n\nFrom {FROM_STREAMS} streams to the most: {', '.join(told)}." if told else ""
    return f"### Gateway and frontend alone, with a fake behind them\n\n{table(head, rows)}{after}"
