"""What the reports of all benchmarks are made of: tables of Markdown, medians, ratios, and where figures come from."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

#: What it is called in results.
TRIPTYCH = "Triptych"


def origin(results: dict, source: str, load: str) -> str:
    """Where figures come from.

    Args:
        source: where the results are kept, as the document shall name it.
        load: what was asked of what was measured, in words.
    """
    machine = results["machine"]
    others = f", {results['others_percent']:.0f} % with other programs meanwhile" if "others_percent" in results else ""
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    return "\n".join(
        [
            f"From [`{source}`]({source}), measured on {results['date']} at commit `{results['commit'] or 'unknown'}` with",
            "",
            f"    {results['command']}",
            "",
            f"- Machine: {machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB, {machine['system']};"
            f" {results['busy_percent']['all']:.0f} % busy with nothing under load{others}.",
            f"- Versions: {versions}.",
            f"- Load: {load}.",
        ]
    )


def ratio(values: Sequence[float]) -> str:
    """The median, and how far the pairs lay apart."""
    if not values:
        return "-"
    spread = f" ({min(values):.2f}-{max(values):.2f})" if len(values) > 1 else ""
    return f"{statistics.median(values):.2f}{spread}"


def known_median(values: Iterable[float | None]) -> float | None:
    """The median of what was observed; None where nothing was."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def median(values: Iterable[float | None], digits: int = 1) -> str:
    """The same as text; - where nothing was observed."""
    value = known_median(values)
    return "-" if value is None else f"{value:.{digits}f}"


def distinct(values: Iterable) -> list:
    """Without repetitions, in the order of the first."""
    return list(dict.fromkeys(values))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of Markdown."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))
