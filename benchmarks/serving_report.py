"""Tables and charts of what benchmarks/serving.py measured."""

from __future__ import annotations

import math
from collections.abc import Sequence

from charts import Chart, Line, LineChart
from histogram import merged, quantiles
from tables import TRIPTYCH, distinct, known_median, median, origin, ratio, table

ENGINE_ALONE = "engine alone"
_FIGURES = ("output_tokens_per_s", "ttft_p50_ms", "ttft_p99_ms", "gap_p50_ms", "gap_p99_ms")
#: Fractions that stand at the axis of a distribution. Below the first are pieces that were read together, beyond the last a few
#: samples decide.
_PERCENTILES = ((0.1, "10 %"), (0.5, "50 %"), (0.9, "90 %"), (0.99, "99 %"), (0.999, "99.9 %"))
_DISTRIBUTION_ABOUT = (
    "Read: so many percent of the gaps were at most so long. The axis is stretched towards 100 %, because the long ones are what is"
    " felt."
)


def ratios(runs: Sequence[dict], other: str, figure: str, concurrency: int) -> list[float]:
    """Triptych's figure over another target's, one ratio per pair of runs that followed each other."""
    pairs: dict[int, dict[str, float]] = {}
    for run in runs:
        if run["concurrency"] == concurrency and run["target"] in (TRIPTYCH, other) and run["figures"][figure]:
            pairs.setdefault(run["repeat"], {})[run["target"]] = run["figures"][figure]
    return [pair[TRIPTYCH] / pair[other] for pair in pairs.values() if len(pair) == 2]


def render(results: dict, source: str) -> str:
    """All tables, ratios first.

    Args:
        source: where the results are kept, as the document shall name it.
    """
    runs = results["runs"]
    others = [name for name in _targets(runs) if name not in (TRIPTYCH, ENGINE_ALONE)]
    parts = [origin(results, source, _load(results["load"]))]
    parts += [_ratios_to_peer(runs, name) for name in others]
    if any(run["target"] == ENGINE_ALONE for run in runs):
        parts.append(_ratios_to_engine(runs))
    parts += [_absolute(runs), _start_and_memory(results)]
    return "\n\n".join(parts)


def charts(results: dict) -> dict[str, Chart]:
    """Throughput and TTFT against the number of streams, and the distribution of the gaps."""
    runs = results["runs"]
    ticks = tuple((float(concurrency), str(concurrency)) for concurrency in _concurrencies(runs))
    made: dict[str, Chart] = {
        "throughput": LineChart(
            "Output tokens per second against concurrent streams",
            "concurrent streams",
            "output tokens/s",
            [Line(target, _medians(runs, target, "output_tokens_per_s")) for target in _targets(runs)],
            x_ticks=ticks,
            log_x=True,
        ),
        "ttft": LineChart(
            "Time to first token against concurrent streams",
            "concurrent streams",
            "TTFT, ms",
            [
                Line(f"{target} {label}", points, kin=f"{target} p50" if label == "p99" else None)
                for target in _targets(runs)
                if target != ENGINE_ALONE
                for label in ("p50", "p99")
                if (points := _medians(runs, target, f"ttft_{label}_ms"))
            ],
            x_ticks=ticks,
            log_x=True,
            log_y=True,
            about="Medians of the rounds. In a closed loop all streams begin at once, so it holds the prefill of all prompts.",
        ),
    }
    lines = []
    for concurrency in _concurrencies(runs):
        own = [run["figures"] for run in runs if run["target"] == TRIPTYCH and run["concurrency"] == concurrency]
        counts = merged(figures.get("gaps", {}) for figures in own)
        if counts:
            lines.append(Line("1 stream" if concurrency == 1 else f"{concurrency} streams", _stretched(counts)))
    if lines:
        made["gaps"] = LineChart(
            "Gaps between pieces of text, by percentile",
            "percent of the gaps that were not longer",
            "gap, ms",
            lines,
            x_ticks=tuple((_stretch(fraction), text) for fraction, text in _PERCENTILES),
            log_y=True,
            marks_points=False,
            about=_DISTRIBUTION_ABOUT,
        )
    return made


def _stretch(fraction: float) -> float:
    """Where a fraction stands on an axis on which each further nine is as wide as the one before."""
    return -math.log10(1 - fraction)


def _stretched(counts: dict[str, int]) -> list[tuple[float, float]]:
    """The distribution's points, as far as the axis goes."""
    first, last = _PERCENTILES[0][0], _PERCENTILES[-1][0]
    points = [(fraction, ms) for fraction, ms in quantiles(counts) if first <= fraction]
    inside = [(first, points[0][1]), *(point for point in points if point[0] <= last)]
    return [(_stretch(fraction), ms) for fraction, ms in inside]


def _medians(runs: Sequence[dict], target: str, figure: str) -> list[tuple[float, float]]:
    """(concurrency, median of the rounds), where there is one."""
    points = []
    for concurrency in _concurrencies(runs):
        own = [run["figures"][figure] for run in runs if (run["target"], run["concurrency"]) == (target, concurrency)]
        value = known_median(own)
        if value is not None:
            points.append((float(concurrency), value))
    return points


def _load(load: dict) -> str:
    return (
        f"{load['model']}, prompts of {load['prompt_words']} words, {load['max_tokens']} output tokens,"
        f" {load['requests_per_stream']} requests per stream, {load['repeats']} rounds"
    )


def _ratios_to_peer(runs: Sequence[dict], peer: str) -> str:
    head = [
        "streams",
        "output tokens/s (more is better)",
        "TTFT p50 (less is better)",
        "TTFT p99 (less)",
        "gap p50 (less)",
        "gap p99 (less)",
    ]
    rows = [[str(c), *(ratio(ratios(runs, peer, figure, c)) for figure in _FIGURES)] for c in _concurrencies(runs)]
    return f"### Triptych against {peer}, as ratios\n\n{table(head, rows)}"


def _ratios_to_engine(runs: Sequence[dict]) -> str:
    rows = [[str(c), ratio(ratios(runs, ENGINE_ALONE, _FIGURES[0], c))] for c in _concurrencies(runs)]
    return f"### REST against the engine alone\n\n{table(['streams', 'output tokens/s, REST / engine alone'], rows)}"


def _absolute(runs: Sequence[dict]) -> str:
    head = ["streams", "target", "output tokens/s", "TTFT p50, ms", "TTFT p99, ms", "gap p50, ms", "gap p99, ms", "ok", "failed"]
    rows = []
    for concurrency in _concurrencies(runs):
        for target in _targets(runs):
            figures = [run["figures"] for run in runs if (run["concurrency"], run["target"]) == (concurrency, target)]
            if figures:
                medians = [median([each[name] for each in figures]) for name in _FIGURES]
                counts = [str(sum(each[name] for each in figures)) for name in ("num_ok", "num_failed")]
                rows.append([str(concurrency), target, *medians, *counts])
    return f"### Figures behind the ratios (medians of the rounds)\n\n{table(head, rows)}"


def _start_and_memory(results: dict) -> str:
    cold_start, memory = results["cold_start"], results["memory"]
    head = ["service", "idle, MB", "peak, MB", "limit, MB"]
    rows = [[name, *(f"{sizes[key] / 1e6:.0f}" for key in ("idle", "peak", "limit"))] for name, sizes in memory.items()]
    return (
        f"### Start and memory\n\nFrom the command to the address: {cold_start['ready_s']:.1f} s; to the end of the first chat"
        f" answer: {cold_start['first_answer_s']:.1f} s. Resident memory, at its peak with {max(_concurrencies(results['runs']))}"
        f" streams:\n\n{table(head, rows)}"
    )


def _targets(runs: Sequence[dict]) -> list[str]:
    return distinct(run["target"] for run in runs)


def _concurrencies(runs: Sequence[dict]) -> list[int]:
    return distinct(run["concurrency"] for run in runs)
