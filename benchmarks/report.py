"""Writes the tables of docs/performance.md from a results file of benchmarks/serving.py.

    python benchmarks/report.py benchmarks/results/2026-01-31-serving.json

What stands between the two markers is replaced, all other text is left as it is. `--stdout` prints the tables instead.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

BEGIN, END = "<!-- serving:begin -->", "<!-- serving:end -->"
DOCUMENT = Path(__file__).parent.parent / "docs" / "performance.md"
TRIPTYCH, ENGINE_ALONE = "Triptych", "engine alone"
_FIGURES = ("output_tokens_per_s", "ttft_p50_ms", "ttft_p99_ms", "gap_p50_ms", "gap_p99_ms")


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
    others = [name for name in distinct(run["target"] for run in runs) if name not in (TRIPTYCH, ENGINE_ALONE)]
    parts = [origin(results, source, _load(results["load"]))]
    parts += [_ratios_to_peer(runs, name) for name in others]
    if any(run["target"] == ENGINE_ALONE for run in runs):
        parts.append(_ratios_to_engine(runs))
    parts += [_absolute(runs), _start_and_memory(results)]
    return "\n\n".join(parts)


def replace_between_markers(document: str, tables: str, begin: str = BEGIN, end: str = END) -> str:
    """Raises ValueError when the document has not exactly one pair of markers."""
    if document.count(begin) != 1 or document.count(end) != 1 or document.index(begin) > document.index(end):
        raise ValueError(f"exactly one {begin} followed by one {end} is needed")
    return re.sub(f"{begin}.*{end}", lambda _: f"{begin}\n\n{tables}\n\n{end}", document, flags=re.DOTALL)


def origin(results: dict, source: str, load: str) -> str:
    """Where figures come from.

    Args:
        source: where the results are kept, as the document shall name it.
        load: what was asked of the servers, in words.
    """
    machine = results["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    return "\n".join(
        [
            f"From [`{source}`]({source}), measured on {results['date']} at commit `{results['commit'] or 'unknown'}` with",
            "",
            f"    {results['command']}",
            "",
            f"- Machine: {machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB, {machine['system']};"
            f" {results['busy_percent']['all']:.0f} % busy with nothing under load.",
            f"- Versions: {versions}.",
            f"- Load: {load}.",
        ]
    )


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
        for target in distinct(run["target"] for run in runs):
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


def ratio(values: Sequence[float]) -> str:
    """The median, and how far the pairs lay apart."""
    if not values:
        return "-"
    spread = f" ({min(values):.2f}-{max(values):.2f})" if len(values) > 1 else ""
    return f"{statistics.median(values):.2f}{spread}"


def median(values: Iterable[float | None]) -> str:
    """The median of what was observed; - where nothing was."""
    known = [value for value in values if value is not None]
    return f"{statistics.median(known):.1f}" if known else "-"


def _concurrencies(runs: Sequence[dict]) -> list[int]:
    return distinct(run["concurrency"] for run in runs)


def distinct(values: Iterable) -> list:
    """Without repetitions, in the order of the first."""
    return list(dict.fromkeys(values))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of Markdown."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def write_document(path: Path, document: Path = DOCUMENT) -> None:
    """Put the tables of a results file into the document."""
    source = f"../benchmarks/results/{path.name}"
    tables = render(json.loads(path.read_text(encoding="utf-8")), source)
    document.write_text(replace_between_markers(document.read_text(encoding="utf-8"), tables), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="a file of benchmarks/results/")
    parser.add_argument("--stdout", action="store_true", help="print the tables, change no file")
    args = parser.parse_args()
    if args.stdout:
        print(render(json.loads(args.results.read_text(encoding="utf-8")), args.results.name))
    else:
        write_document(args.results)
        print(f"wrote {DOCUMENT}")


if __name__ == "__main__":
    main()
