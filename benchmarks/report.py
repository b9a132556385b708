"""Writes tables and charts of docs/performance.md from files of benchmarks/results/.

    python benchmarks/report.py benchmarks/results/2026-01-31-serving.json [...]

Each kind of results has a region of the document, between two markers, and its charts in docs/figures/. What is outside of the
regions is left as it is. `--stdout` prints the tables instead, and draws nothing.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import encoder_report
import serving_report
import steps_report
import streams_report
from charts import Chart

DOCUMENT = Path(__file__).parent.parent / "docs" / "performance.md"
FIGURES = "figures"


@dataclass(frozen=True)
class Kind:
    """How results become text.

    Attributes:
        render: results, where they are kept -> Markdown.
        charts: results -> name -> chart.
    """

    render: Callable[[dict, str], str]
    charts: Callable[[dict], Mapping[str, Chart]] = lambda results: {}


#: Kinds of results, in the order of the document.
KINDS = {
    "serving": Kind(serving_report.render, serving_report.charts),
    "streams": Kind(streams_report.render, streams_report.charts),
    "steps": Kind(steps_report.render, steps_report.charts),
    "encoder": Kind(encoder_report.render),
}


def kind_of(results: dict) -> str:
    """Which of `KINDS` they are. Files from before there were several do not say."""
    return results.get("kind") or ("encoder" if "cases" in results else "serving")


def markers(kind: str) -> tuple[str, str]:
    """Between these lies its region."""
    return f"<!-- {kind}:begin -->", f"<!-- {kind}:end -->"


def render(results: dict, source: str) -> str:
    """A region: its tables, then its charts.

    Args:
        source: where the results are kept, as the document shall name it.
    """
    kind = kind_of(results)
    parts = [KINDS[kind].render(results, source)]
    for name, chart in KINDS[kind].charts(results).items():
        about = f"{chart.about} " if chart.about else ""
        parts.append(f"![{chart.title}]({FIGURES}/{kind}-{name}.svg)\n\n*{chart.title}.* {about}Made by `{results['command']}`.")
    return "\n\n".join(parts)


def replace_between_markers(document: str, kind: str, text: str) -> str:
    """Raises ValueError when the document has not exactly one pair of the kind's markers."""
    begin, end = markers(kind)
    if document.count(begin) != 1 or document.count(end) != 1 or document.index(begin) > document.index(end):
        raise ValueError(f"exactly one {begin} followed by one {end} is needed")
    return re.sub(f"{begin}.*{end}", lambda _: f"{begin}\n\n{text}\n\n{end}", document, flags=re.DOTALL)


def write_document(path: Path, document: Path = DOCUMENT) -> None:
    """Put what a results file says into the document, and its charts beside it."""
    results = json.loads(path.read_text(encoding="utf-8"))
    kind, tables = kind_of(results), render(results, f"../benchmarks/results/{path.name}")
    text = replace_between_markers(document.read_text(encoding="utf-8"), kind, tables)
    if charts := KINDS[kind].charts(results):
        from plots import draw  # a second, and only for those who draw

        (document.parent / FIGURES).mkdir(exist_ok=True)
        for name, chart in charts.items():
            (document.parent / FIGURES / f"{kind}-{name}.svg").write_text(draw(chart), encoding="utf-8")
    document.write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+", help="files of benchmarks/results/")
    parser.add_argument("--stdout", action="store_true", help="print the tables, change no file")
    args = parser.parse_args()
    for path in args.results:
        if args.stdout:
            print(render(json.loads(path.read_text(encoding="utf-8")), path.name))
        else:
            write_document(path)
            print(f"wrote {DOCUMENT} from {path}")


if __name__ == "__main__":
    main()
