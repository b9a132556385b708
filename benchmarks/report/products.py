"""Tables of what benchmarks.products measured."""

from __future__ import annotations

import math
import statistics

from benchmarks.report.tables import count, distinct, origin, table

_METHODS = {"fp32": "in float32", "dot": "with bfloat16 vectors", "tiles": "with bfloat16 tiles"}


def ratio_of(times: dict) -> float:
    """How many times as long the product with bfloat16 weights takes."""
    return statistics.median(a / b for a, b in zip(times["bf16_us"], times["us"], strict=True))


def render(results: dict, source: str) -> str:
    """Ratios by format and rows: of the shapes, the smallest and the largest."""
    load, runs = results["load"], results["runs"]
    words = (
        f"single products, {count(load['threads'], 'thread')}, {count(load['rounds'], 'round')} by turns; bfloat16 weights are"
        f" multiplied {_METHODS[load['method']]}; a copy reads and writes {load['copied_bytes_per_s'] / 1e9:.1f} GB/s"
    )
    sizes = [count(each["rows"], "row") for each in runs[0]["times"]]
    rows = []
    for name in distinct(run["format"] for run in runs):
        own = [run for run in runs if run["format"] == name]
        per_weight = own[0]["nbytes"] / math.prod(own[0]["shape"])
        by_size = zip(*([ratio_of(one) for one in run["times"]] for run in own), strict=True)
        rows.append((name, f"{per_weight:.3f}", *(f"{min(ratios):.2f}-{max(ratios):.2f}" for ratios in by_size)))
    shapes = ", ".join(f"{run['shape'][0]} x {run['shape'][1]}" for run in runs if run["format"] == runs[0]["format"])
    words += f"; from the smallest to the largest of {shapes} (outputs x inputs)"
    head = ("format", "bytes per weight", *sizes)
    return "\n\n".join([origin(results, source, words), table(head, rows)])
