"""Tables and charts of what benchmarks.simulation computed."""

from __future__ import annotations

import statistics

from benchmarks.report.plots import Chart, Line
from benchmarks.report.tables import count, origin, ratio, table

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
    """Figures by workload: real runs with the smallest and the largest, simulated ones, and their ratio."""
    load = results["load"]
    steps = "that compute, one core each" if load["computes"] else "with simulated steps"
    words = f"{count(load['engines'], 'engine')} {steps}, {count(load['frontends'], 'frontend')}, routing {load['policy']}"
    names = list(results["real"])
    fitted = load["fitted"] if results["fit_error"] is not None else None
    rows = []
    for figure, (called, digits) in _FIGURES.items():
        cells = []
        for name in names:
            values, found = ([run[figure] for run in side[name]] for side in (results["real"], results["simulated"]))
            middle, simulated = statistics.median(values), statistics.median(found)
            share = f"; {simulated / middle:.2f}" if middle else ""
            cells.append(f"{ratio(values, digits)}; {simulated:.{digits}f}{share}")
        rows.append((called, *cells))
    head = ("real (smallest-largest); simulated; ratio", *(name + ", fitted" * (name == fitted) for name in names))
    return "\n\n".join([origin(results, source, words), table(head, rows)])


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
    # What is the same in all runs is told once.
    columns = dict(zip(head, zip(*rows, strict=True), strict=True))
    differing = {name: cells for name, cells in columns.items() if len(set(cells)) > 1 or len(rows) == 1}
    same = "; ".join(f"{name}: {cells[0]}" for name, cells in columns.items() if name not in differing)
    words += f"; in all rows {same}" if same else ""
    return "\n\n".join([origin(results, source, words), table(list(differing), list(zip(*differing.values(), strict=True)))])


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
