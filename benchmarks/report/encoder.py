"""Tables of what benchmarks.encoder measured."""

from __future__ import annotations

import statistics

from benchmarks.report.tables import TRIPTYCH, Figure, distinct, median, origin, ratio, ratios, section, table

#: Milliseconds in a report on a picture -> what they are.
_STAGES = {
    "decode_ms": "decoded",
    "preprocess_ms": "preprocessed",
    "encode_ms": "encoded",
    "queue_ms": "waited in the encoder",
    "transfer_ms": "frontend to encoder and back",
    "fetch_ms": "engine's fetch, waiting included",
}
#: Figures of the text streams.
_WINDOW = {
    "output tokens/s": "output_tokens_per_s",
    "gap p50, ms": "gap_p50_ms",
    "gap p99, ms": "gap_p99_ms",
    "longest gap, ms": "gap_max_ms",
}


def window(part: str, figure: str) -> Figure:
    """A figure of the text streams, `alone` or `beside` the flood."""
    return lambda run: run["flood"][part][figure]


def ttft(case: str) -> Figure:
    """The median TTFT of a case, in milliseconds."""

    def figure(run: dict) -> float | None:
        values = [sample["ttft_ms"] for sample in run["samples"] if sample["case"] == case]
        return statistics.median(values) if values else None

    return figure


def figures_of(cases: list[str]) -> dict[str, Figure]:
    """What the table tells, line by line."""
    return {
        **{f"TTFT, {case}, ms": ttft(case) for case in cases},
        **{
            f"text {label}, {name}": window(part, key)
            for part, label in (("alone", "alone"), ("beside", "beside the flood"))
            for name, key in _WINDOW.items()
        },
        "flood, s": window("beside", "seconds"),
        "flood, TTFT p50, ms": lambda run: run["flood"]["ttft_p50_ms"],
        "flood, TTFT max, ms": lambda run: run["flood"]["ttft_max_ms"],
        "pictures that failed": lambda run: run["flood"]["num_failed"],
    }


def render(results: dict, source: str) -> str:
    """The figures with their ratios, then Triptych's stages; `source` is where results are kept, as the document names it."""
    runs, load, cases = results["runs"], results["load"], results["cases"]
    words = (
        f"{load['model']}, JPEGs of {load['size']} x {load['size']} pixels, {load['pictures']} one by one and {load['flood']} at"
        f" once, four text streams with answers of {load['stream_tokens']} tokens, {load['rounds']} rounds"
    )
    targets = distinct(run["target"] for run in runs)
    others = [name for name in targets if name != TRIPTYCH and TRIPTYCH in targets]
    rows = []
    for label, figure in figures_of(cases).items():
        row = [label]
        for name in targets:
            values = [figure(run) for run in runs if run["target"] == name]
            row.append(median(values))
        rows.append(row + [ratio(ratios(runs, (TRIPTYCH, figure), (name, figure))) for name in others])
    head = ["medians of the rounds", *targets, *(f"Triptych / {name}" for name in others)]
    title = f"New pictures, and four text streams beside {load['flood']} of them at once"
    parts = [origin(results, source, words), section(title, table(head, rows))]
    samples = [each for run in runs for each in run["samples"] if run["target"] == TRIPTYCH and each["case"] == cases[0]]
    if samples:
        stages = [[label, median(each["report"][key] for each in samples)] for key, label in _STAGES.items()]
        title = "Where a new picture's time goes in Triptych (medians, ms)"
        parts.append(section(title, table(["stage", "ms"], stages)))
    return "\n\n".join(parts)
