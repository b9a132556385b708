"""The table of what benchmarks.routing measured."""

from __future__ import annotations

import statistics

from benchmarks.report.tables import count, origin, table


def render(results: dict, source: str) -> str:
    """Policies and numbers of frontends, medians of the repeats."""
    load, costs = results["load"], results["costs"]
    words = (
        f"{count(load['users'], 'user')} of {load['turns']} turns, {load['concurrency']} at once, {load['max_tokens']} tokens each,"
        f" {count(load['engines'], 'simulated engine')} of {load['blocks']} blocks, whose steps take {1e3 * costs['fixed_s']:.1f}"
        f" ms, {1e3 * costs['decode_s']:.2f} ms per decoding sequence and {1e3 * costs['prompt_token_s']:.2f} ms per prompt token;"
        f" one engine with the memory of all is as many times faster"
    )
    rows = []
    for policy, frontends in dict.fromkeys((run["policy"], run["frontends"]) for run in results["runs"]):
        runs = [run for run in results["runs"] if (run["policy"], run["frontends"]) == (policy, frontends)]
        rows.append(
            (
                policy,
                str(frontends),
                f"{statistics.median(run['hits'] for run in runs):.3f}",
                f"{statistics.median(run['ttft_ms']['p50'] for run in runs):.0f}",
                f"{statistics.median(run['ttft_ms']['p99'] for run in runs):.0f}",
                f"{statistics.median(run['tokens_per_s'] for run in runs):.0f}",
                f"{statistics.median(run['max_by_mean_load'] for run in runs):.2f}",
            )
        )
    head = ("routing", "frontends", "found in prefix caches", "TTFT p50, ms", "p99, ms", "tok/s", "load max/mean")
    return "\n\n".join([origin(results, source, words), table(head, rows)])
