"""Writes tables and charts of docs/architecture/measurements.md from files of benchmarks/results/: what `make bench-report` runs.

    python -m benchmarks.report                                              # those that the document shows already, again
    python -m benchmarks.report benchmarks/results/2026-01-31-serving.json   # these, in place of what it shows of their kind
    python -m benchmarks.report --stdout FILE                                # print the tables of any file, change none

Some kinds of results have a region of the document, between two markers. Charts are in docs/figures/. What is outside of the
regions is left as it is: there the figures that matter of the other kinds are written by hand.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.machine import REPOSITORY
from benchmarks.harness.sitting import RESULTS, new_parser
from benchmarks.report import (
    clients,
    encoder,
    gpu,
    hybrids,
    load_memory,
    loras,
    numerics,
    products,
    routing,
    sampling,
    serving,
    simulation,
    speculation,
    steps,
    telemetry,
)
from benchmarks.report.plots import Chart, draw

DOCUMENT = REPOSITORY / "docs" / "architecture" / "measurements.md"
FIGURES = "../figures"


@dataclass(frozen=True)
class Kind:
    """How results become text.

    Attributes:
        render: results, where they are kept -> Markdown.
        charts: results -> name -> chart.
        shown: the part of `render` that the document has, beside the charts. None: all.
    """

    render: Callable[[dict, str], str]
    charts: Callable[[dict], Mapping[str, Chart]] = lambda results: {}
    shown: Callable[[dict, str], str] | None = None


#: Kinds of results.
KINDS = {
    "serving": Kind(serving.render, serving.charts, serving.render_ratios),
    "streams": Kind(serving.render, serving.charts),
    "steps": Kind(steps.render, steps.charts, steps.render_stages),
    "executors": Kind(steps.render_executors),
    "ranks": Kind(steps.render_ranks),
    "routing": Kind(routing.render),
    "roles": Kind(routing.render_roles),
    "offloading": Kind(routing.render_offloading),
    "simulation.compare": Kind(simulation.render_compare),
    "simulation.scale": Kind(simulation.render_scale, simulation.charts_scale),
    "encoder": Kind(encoder.render),
    "constraints.streams": Kind(sampling.render_streams),
    "constraints.steps": Kind(sampling.render_steps),
    "sampling": Kind(sampling.render_options),
    "clients.python": Kind(clients.render_python),
    "telemetry.tracing": Kind(telemetry.render_tracing),
    "numerics": Kind(numerics.render),
    "products": Kind(products.render),
    "speculation": Kind(speculation.render),
    "load_memory": Kind(load_memory.render),
    "gpu": Kind(gpu.render),
    "loras": Kind(loras.render),
    "hybrids": Kind(hybrids.render),
}

#: Those whose tables the document has, in its order.
SHOWN = ("serving", "steps", "numerics")


def kind_of(results: dict) -> str:
    """Which of `KINDS` they are. Files from before there were several do not say."""
    return results.get("kind") or ("encoder" if "cases" in results else "serving")


def markers(kind: str) -> tuple[str, str]:
    """Between these lies its region."""
    return f"<!-- {kind}:begin -->", f"<!-- {kind}:end -->"


def render(results: dict, source: str) -> str:
    """All tables of results.

    Args:
        source: where the results are kept, as the document names it.
    """
    return KINDS[kind_of(results)].render(results, source)


def region(results: dict, source: str) -> str:
    """What the document shows of results: tables, then charts."""
    kind = kind_of(results)
    charts = (f"![{chart.title}]({FIGURES}/{kind}-{name}.svg)" for name, chart in KINDS[kind].charts(results).items())
    return "\n\n".join([(KINDS[kind].shown or KINDS[kind].render)(results, source), *charts])


def replace_between_markers(document: str, kind: str, text: str) -> str:
    """Raises ValueError when the document has not exactly one pair of the kind's markers."""
    begin, end = markers(kind)
    if document.count(begin) != 1 or document.count(end) != 1 or document.index(begin) > document.index(end):
        raise ValueError(f"exactly one {begin} followed by one {end} is needed")
    return re.sub(f"{begin}.*{end}", lambda _: f"{begin}\n\n{text}\n\n{end}", document, flags=re.DOTALL)


def shown_results(document: str) -> list[Path]:
    """The results files that the regions of a document are made of."""
    found = [re.search(rf"{markers(kind)[0]}\s+From \[`([^`]+)`", document) for kind in SHOWN]
    return [RESULTS / match[1] for match in found if match]


def write_document(path: Path, document: Path = DOCUMENT) -> None:
    """Put what a results file says into the document, where it shows this kind, and its charts beside it."""
    results = json.loads(path.read_text(encoding="utf-8"))
    kind, text = kind_of(results), document.read_text(encoding="utf-8")
    if kind in SHOWN:
        text = replace_between_markers(text, kind, region(results, f"../../benchmarks/results/{path.name}"))
    (document.parent / FIGURES).mkdir(exist_ok=True)
    for name, chart in KINDS[kind].charts(results).items():
        (document.parent / FIGURES / f"{kind}-{name}.svg").write_text(draw(chart), encoding="utf-8")
    document.write_text(text, encoding="utf-8")


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("results", type=Path, nargs="*", help="files of benchmarks/results/")
    parser.add_argument("--stdout", action="store_true", help="print the tables, change no file")
    args = parser.parse_args()
    for path in args.results or shown_results(DOCUMENT.read_text(encoding="utf-8")):
        if args.stdout:
            sys.stdout.write(render(json.loads(path.read_text(encoding="utf-8")), path.name) + "\n")
        else:
            write_document(path)
            print(f"wrote what {DOCUMENT.relative_to(REPOSITORY)} shows of {path.name}")
