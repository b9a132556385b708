"""The table of what benchmarks.loras measured."""

from __future__ import annotations

import statistics

from benchmarks.report.tables import count, origin, table


def render(results: dict, source: str) -> str:
    """Decoding steps by sequences, and a prompt; medians of the rounds."""
    load = results["load"]
    words = (
        f"{load['model']}, adapters of rank {load['rank']} on all linear layers, {count(load['rounds'], 'round')}; of the kinds by"
        " turns: the base model, one adapter in all rows, four adapters in turn"
    )
    rows = []
    for run in results["runs"]:
        base = statistics.median(times["base"] for times in run["rounds_ms"])
        what = f"{load['prompt']} tokens of a prompt" if run["sequences"] == "prompt" else count(run["sequences"], "sequence")
        rows.append((what, f"{base:.2f}", *(f"{ratio:.3f}" for ratio in run["of_base"].values())))
    head = ("step", "base, ms", *(f"{kind}, of base" for kind in results["runs"][0]["of_base"]))
    return "\n\n".join([origin(results, source, words), table(head, rows)])
