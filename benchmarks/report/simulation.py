"""Tables and charts of what benchmarks.simulation computed."""

from __future__ import annotations

import statistics

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
    for name, runs in results["real"].items():
        role = "fitted" if name == load["fitted"] and results["fit_error"] is not None else "not seen before"
        for figure, (called, digits) in _FIGURES.items():
            values, simulated = [run[figure] for run in runs], results["simulated"][name][figure]
            middle = statistics.median(values)
            rows.append(
                (
                    f"{name}, {role}",
                    called,
                    f"{middle:.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})",
                    f"{simulated:.{digits}f}",
                    f"{simulated / middle:.2f}" if middle else "",
                )
            )
    return "\n\n".join([origin(results, source, words), table(("workload", "figure", "real", "simulated", "ratio"), rows)])
