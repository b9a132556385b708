"""Tables and charts of what benchmarks.simulation computed."""

from __future__ import annotations

import statistics

from benchmarks.report.plots import Chart, Line
from benchmarks.report.tables import count, origin, table

#: Figure -> what it is called, and its digits.
_FIGURES = {
    "goodput_per_s": ("goodput, requests/s", 2),
    "tokens_per_s": ("tokens/s", 0),
    "hits": ("found in prefix caches", 3),
    "ttft_p50_ms": ("TTFT p50, ms", 0),
    "ttft_p99_ms": ("TTFT p99, ms", 0),
    "token_p50_ms": ("time per token p50, ms", 1),
    "token_p99_ms": ("time per token p99, ms", 1),
    "max_by_mean_load": ("load max/mean", 2),
}


def render_compare(results: dict, source: str) -> str:
    """Real and simulated figures by workload, and their ratio."""
    load = results["load"]
    steps = "that compute, one core each" if load["computes"] else "with simulated steps"
    words = f"{count(load['engines'], 'engine')} {steps}, {count(load['frontends'], 'frontend')}, routing {load['policy']}"
    rows = []
    for name in results["real"]:
        role = "fitted" if name == load["fitted"] and results["fit_error"] is not None else "not seen before"
        for figure, (called, digits) in _FIGURES.items():
            values, found = ([run[figure] for run in side[name]] for side in (results["real"], results["simulated"]))
            middle, simulated = statistics.median(values), statistics.median(found)
            rows.append(
                (
                    f"{name}, {role}",
                    called,
                    f"{middle:.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})",
                    f"{simulated:.{digits}f} ({min(found):.{digits}f} to {max(found):.{digits}f})",
                    f"{simulated / middle:.2f}" if middle else "",
                )
            )
    return "\n\n".join([origin(results, source, words), table(("workload", "figure", "real", "simulated", "ratio"), rows)])


def render_scale(results: dict, source: str) -> str:
    """Every run of the sitting."""
    limits, overheads = results["limits"], results["overheads"]
    choice = ", ".join(f"{1e6 * seconds:.1f} us ({policy})" for policy, seconds in overheads["choice_s"].items())
    words = (
        f"{count(results['load']['engines'], 'simulated engine')} of {results['load']['blocks']} blocks; within the limits means"
        f" TTFT up to {limits['ttft_s']:g} s and a mean time per token up to {1e3 * limits['token_s']:.0f} ms; a frontend needs"
        f" {choice} to compare an engine, {1e3 * overheads['frontend_request_s']:.2f} ms for a request besides, and"
        f" {1e3 * overheads['frontend_token_s']:.2f} ms for a token"
    )
    rows = [
        (
            run["part"] + (f" of {run['num_losses']} engines" if run["num_losses"] else ""),
            run["policy"],
            f"{run['engines']}, {run['frontends']}",
            f"{run['rate']:g}",
            f"{run['good_share']:.3f}",
            f"{run['goodput_per_s']:.1f}",
            f"{run['hits']:.3f}",
            f"{run['ttft_p50_ms']:.0f}",
            f"{run['ttft_p99_ms']:.0f}",
            f"{run['max_by_mean_load']:.2f}",
            f"{run['frontend_busy']:.2f}",
            f"{run['num_requests']}, {run['num_failed']}, {run['num_moved']}",
            f"{100 * run['off_grid']:.1f}",
        )
        for run in results["runs"]
    ]
    head = (
        "part", "routing", "engines, frontends", "requests/s of each engine", "within the limits", "goodput, requests/s",
        "found in prefix caches", "TTFT p50, ms", "p99, ms", "load max/mean", "busiest frontend", "requests, failed, moved",
        "steps off the grid, %",
    )  # fmt: skip
    return "\n\n".join([origin(results, source, words), table(head, rows)])


def charts_scale(results: dict) -> dict[str, Chart]:
    """Figures by load, a line for each policy."""
    runs = [run for run in results["runs"] if run["part"] == "load"]
    if not runs:
        return {}
    ticks = [(rate, f"{rate:g}") for rate in sorted({run["rate"] for run in runs})]
    engines = runs[0]["engines"]

    def chart(name: str, title: str, label: str) -> Chart:
        lines = [
            Line(policy, [(run["rate"], run[name]) for run in runs if run["policy"] == policy])
            for policy in dict.fromkeys(run["policy"] for run in runs)
        ]
        return Chart(f"{title}, {engines} engines", "requests per second and engine", label, lines, ticks)

    return {
        "goodput": chart("good_share", "Requests within the limits", "share"),
        "hits": chart("hits", "Found in prefix caches", "share of prompt tokens"),
        "ttft": chart("ttft_p50_ms", "Median TTFT", "ms"),
    }
