"""Tables of what benchmarks.products measured."""

from __future__ import annotations

import statistics

from benchmarks.report.tables import count, origin, table

_METHODS = {"fp32": "in float32", "dot": "with bfloat16 vectors", "tiles": "with bfloat16 tiles"}


def ratio_of(times: dict) -> float:
    """How many times as long the product with bfloat16 weights takes."""
    return statistics.median(a / b for a, b in zip(times["bf16_us"], times["us"], strict=True))


def render(results: dict, source: str) -> str:
    """Ratios by format and rows."""
    load, runs = results["load"], results["runs"]
    words = (
        f"single products, {count(load['threads'], 'thread')}, {count(load['rounds'], 'round')} by turns; bfloat16 weights are"
        f" multiplied {_METHODS[load['method']]}; a copy reads and writes {load['copied_bytes_per_s'] / 1e9:.1f} GB/s"
    )
    sizes = [count(each["rows"], "row") for each in runs[0]["times"]]
    head = ("format", "outputs x inputs", "bytes per weight", *sizes, "bandwidth at 1 row, relative to a copy")
    rows = []
    for run in runs:
        out_features, in_features = run["shape"]
        ratios = [ratio_of(one) for one in run["times"]]
        alone = [one for one in run["times"] if one["rows"] == 1]
        share = run["nbytes"] / (statistics.median(alone[0]["us"]) / 1e6) / load["copied_bytes_per_s"] if alone else None
        per_weight = run["nbytes"] / (out_features * in_features)
        rows.append(
            (
                run["format"],
                f"{out_features} x {in_features}",
                f"{per_weight:.3f}",
                *(f"{ratio:.2f}" for ratio in ratios),
                "-" if share is None else f"{share:.2f}",
            )
        )
    return "\n\n".join([origin(results, source, words), table(head, rows)])
