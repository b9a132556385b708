"""What the reports of all benchmarks are made of: tables of Markdown, medians, ratios, and where figures come from."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence

#: What it is called in results.
TRIPTYCH = "Triptych"
#: A figure of one run; None where there is none.
Figure = Callable[[dict], float | None]


def origin(results: dict, source: str, load: str) -> str:
    """Where figures come from. The command and the versions of libraries are in the file alone.

    Args:
        source: where the results are kept, as the document names it.
        load: what was asked of what was measured, in words.
    """
    machine = results["machine"]
    others = f", {results['others_percent']:.0f} % with other programs meanwhile" if "others_percent" in results else ""
    lines = [
        f"From [`{source.rpartition('/')[2]}`]({source}), commit `{results['commit'] or 'unknown'}`: {machine['cpu']},"
        f" {count(machine['cores'], 'core')}, {abs(results['busy_percent']['all']):.0f} % busy before{others}; {load}."
    ]
    servers: dict[str, list[str]] = {}
    for server in results.get("servers", ()):
        servers.setdefault(server["command"], []).append(" ".join(filter(None, (server["name"], server.get("version")))))
    told = [f"- {', '.join(names)}: `{command}`." for command, names in servers.items()]
    return "\n".join([*lines, "", *told]) if told else lines[0]


def ratios(runs: Sequence[dict], over: tuple[str, Figure], under: tuple[str, Figure]) -> list[float]:
    """A target's figure over another's (or another figure of its own), one ratio per round that has both."""
    values: dict[int, dict[int, float]] = {}
    for run in runs:
        for place, (target, figure) in enumerate((over, under)):
            value = figure(run) if run["target"] == target else None
            if value:
                values.setdefault(run["repeat"], {})[place] = value
    return [pair[0] / pair[1] for pair in values.values() if len(pair) == 2]


def ratio(values: Sequence[float], digits: int = 2) -> str:
    """The median of ratios or other figures, with the smallest and the largest."""
    if not values:
        return "-"
    spread = f" ({min(values):.{digits}f}-{max(values):.{digits}f})" if len(values) > 1 else ""
    return f"{statistics.median(values):.{digits}f}{spread}"


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


def count(number: int, thing: str) -> str:
    """`1 stream`, `8 streams`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of Markdown."""
    first, *others = (f"| {' | '.join(cells)} |" for cells in (head, *rows))
    return "\n".join([first, f"|{'---|' * len(head)}", *others])


def section(title: str, *parts: str) -> str:
    """A title, and what stands below it."""
    return "\n\n".join([f"### {title}", *parts])
