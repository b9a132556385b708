"""Tables of what benchmarks/encoder.py measured."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from tables import TRIPTYCH, distinct, median, origin, ratio, table

INSIDE = "encoding inside the engine"
#: Milliseconds in a report on a picture -> what they are.
_STAGES = {
    "decode_ms": "decoded",
    "preprocess_ms": "preprocessed",
    "encode_ms": "encoded",
    "queue_ms": "waited in the encoder",
    "transfer_ms": "frontend to encoder and back",
    "fetch_ms": "engine's fetch, waiting included",
}
#: A figure of one turn; None where there is none.
Figure = Callable[[dict], float | None]


def window(part: str, figure: str) -> Figure:
    """A figure of the text streams, `alone` or `beside` the flood."""
    return lambda run: run["flood"][part][figure]


def ttft(case: str) -> Figure:
    """The median TTFT of a case, in milliseconds."""

    def figure(run: dict) -> float | None:
        values = [sample["ttft_ms"] for sample in run["samples"] if sample["case"] == case]
        return statistics.median(values) if values else None

    return figure


def ratios(runs: Sequence[dict], over: tuple[str, Figure], under: tuple[str, Figure]) -> list[float]:
    """A target's figure over another's (or another figure of its own), one ratio per round that has both."""
    values: dict[int, dict[int, float]] = {}
    for run in runs:
        for place, (target, figure) in enumerate((over, under)):
            value = figure(run) if run["target"] == target else None
            if value:
                values.setdefault(run["repeat"], {})[place] = value
    return [pair[0] / pair[1] for pair in values.values() if len(pair) == 2]


def render(results: dict, source: str) -> str:
    """All tables, ratios first.

    Args:
        source: where the results are kept, as the document shall name it.
    """
    runs, cases = results["runs"], results["cases"]
    targets = distinct(run["target"] for run in runs)
    parts = [origin(results, source, _load(results)), _ttft_ratios(runs, cases, targets)]
    parts.append(_flood_ratios(runs, targets, results["load"]["flood"]))
    parts += [_against(runs, cases, other) for other in targets if other != TRIPTYCH]
    parts += [_wire(runs, cases, results["embedding"]), _figures(runs, cases, targets), _stages(runs, cases[0])]
    return "\n\n".join(parts)


def _load(results: dict) -> str:
    load = results["load"]
    return (
        f"{load['model']}, JPEGs of {load['size']} x {load['size']} pixels, {load['pictures']} one by one and {load['flood']} at"
        f" once, four text streams with answers of {load['stream_tokens']} tokens, {load['rounds']} rounds"
    )


def _ttft_ratios(runs: Sequence[dict], cases: Sequence[str], targets: Sequence[str]) -> str:
    new = ttft(cases[0])
    rows = [[case, *(ratio(ratios(runs, (name, ttft(case)), (name, new))) for name in targets)] for case in cases[1:]]
    return f"### TTFT, against a new picture's of the same server (less is better)\n\n{table(['picture', *targets], rows)}"


def _flood_ratios(runs: Sequence[dict], targets: Sequence[str], num_pictures: int) -> str:
    figures = {
        "output tokens/s (more is better)": "output_tokens_per_s",
        "gap p50 (less)": "gap_p50_ms",
        "gap p99 (less)": "gap_p99_ms",
        "longest gap (less)": "gap_max_ms",
    }
    rows = [
        [label, *(ratio(ratios(runs, (name, window("beside", key)), (name, window("alone", key)))) for name in targets)]
        for label, key in figures.items()
    ]
    title = f"### Four text streams beside {num_pictures} new pictures at once, against the same streams alone"
    return f"{title}\n\n{table(['text streams', *targets], rows)}"


def _against(runs: Sequence[dict], cases: Sequence[str], other: str) -> str:
    def row(label: str, ours: Figure, theirs: Figure | None = None) -> list[str]:
        return [label, ratio(ratios(runs, (TRIPTYCH, ours), (other, theirs or ours)))]

    rate, gap, longest = "output_tokens_per_s", "gap_p99_ms", "gap_max_ms"
    rows = [row(f"TTFT, {case} (less is better)", ttft(case)) for case in cases]
    rows += [
        row("text alone, output tokens/s (more)", window("alone", rate)),
        row("text beside the flood, output tokens/s (more)", window("beside", rate)),
        row("text beside the flood, against theirs alone, output tokens/s (more)", window("beside", rate), window("alone", rate)),
        row("text beside the flood, gap p99 (less)", window("beside", gap)),
        row("text beside the flood, longest gap (less)", window("beside", longest)),
        row("time until the flood is answered (less)", window("beside", "seconds")),
    ]
    rows = [cells for cells in rows if cells[1] != "-"]
    return f"### Triptych against {other}, as ratios\n\n{table(['', f'Triptych / {other}'], rows)}"


def _wire(runs: Sequence[dict], cases: Sequence[str], embedding: dict[str, int]) -> str:
    head = ["picture", "raw file to the encoder / file", "embeddings to the engine / ideal", "file, KB", "sent, KB", "fetched, KB"]
    rows, ideals = [], []
    for case in cases:
        samples = [each for run in runs for each in run["samples"] if run["target"] == TRIPTYCH and each["case"] == case]
        file, uploaded, fetched = (statistics.fmean(each[key] for each in samples) for key in ("file_bytes", "uploaded", "fetched"))
        tokens = statistics.fmean(each["report"]["num_tokens"] for each in samples)
        ideals.append(tokens * embedding["hidden_size"] * embedding["itemsize"])
        sizes = (f"{size / 1e3:.1f}" for size in (file, uploaded, fetched))
        rows.append([case, f"{uploaded / file:.3f}", f"{fetched / ideals[-1]:.3f}", *sizes])
    return (
        f"### Bytes on the wire behind the gateway, per picture\n\nIdeal is {ideals[0] / 1e3:.1f} KB: tokens x"
        f" {embedding['hidden_size']} numbers x {embedding['itemsize']} bytes.\n\n{table(head, rows)}"
    )


def _figures(runs: Sequence[dict], cases: Sequence[str], targets: Sequence[str]) -> str:
    rows: dict[str, Figure] = {f"TTFT, {case}, ms": ttft(case) for case in cases}
    for part, label in (("alone", "text alone"), ("beside", "text beside the flood")):
        rows[f"{label}, output tokens/s"] = window(part, "output_tokens_per_s")
        for key, gap in (("gap_p50_ms", "gap p50"), ("gap_p99_ms", "gap p99"), ("gap_max_ms", "longest gap")):
            rows[f"{label}, {gap}, ms"] = window(part, key)
        rows[f"{label}, longest silence (waits for next answers included), ms"] = window(part, "silence_max_ms")
    rows["flood, s"] = window("beside", "seconds")
    for key, label in (("ttft_p50_ms", "TTFT p50"), ("ttft_max_ms", "TTFT max")):
        rows[f"flood, {label}, ms"] = lambda run, key=key: run["flood"][key]
    cells = [[label] for label in (*rows, "pictures that failed")]
    for name in targets:
        own = [run for run in runs if run["target"] == name]
        column = [median(figure(run) for run in own) for figure in rows.values()]
        for row, cell in zip(cells, [*column, str(sum(run["flood"]["num_failed"] for run in own))], strict=True):
            row.append(cell)
    return f"### Figures behind the ratios (medians of the rounds)\n\n{table(['', *targets], cells)}"


def _stages(runs: Sequence[dict], new: str) -> str:
    samples = [each for run in runs for each in run["samples"] if run["target"] == TRIPTYCH and each["case"] == new]
    rows = [[label, median(each["report"][key] for each in samples)] for key, label in _STAGES.items()]
    return f"### Where a new picture's time goes in Triptych (medians, ms)\n\n{table(['stage', 'ms'], rows)}"
