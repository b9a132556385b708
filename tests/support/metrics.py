"""What services export, what docs/metrics.md says of it, and cases that say how a metric moves."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
_SECTIONS = {"gateway": "Gateway", "frontend": "Frontend", "encoder": "Encoder", "engine": "Engine"}
_SUFFIXES = {"counter": "_total", "histogram": "_count", "gauge": ""}


@dataclass(frozen=True)
class Documented:
    """What the page says of a metric."""

    name: str
    kind: str
    labels: frozenset[str]


def documented(service: str) -> dict[str, Documented]:
    """The metrics that the page says a service has: name -> row."""
    rows = [row for row, _ in _rows(_SECTIONS[service])]
    rows += _rows_of(service, "Every service") + _rows_of(service, "The names of vLLM")
    return _by_name(rows)


def documented_with_certificates(service: str) -> dict[str, Documented]:
    """The metrics that the page says a service has in addition if it has certificates."""
    return _by_name(_rows_of(service, "With certificates"))


def documented_with_tier(service: str) -> dict[str, Documented]:
    """The metrics that the page says a service has in addition if it has a second tier of the prefix cache."""
    return _by_name(_rows_of(service, "With a second tier"))


def _by_name(rows: list[Documented]) -> dict[str, Documented]:
    found = {row.name: row for row in rows}
    assert len(found) == len(rows), "a metric is documented twice"
    return found


def _rows_of(service: str, section: str) -> list[Documented]:
    """The rows of a section that say that this service has them."""
    return [
        replace(row, name=row.name.replace("<service>", service))
        for row, on in _rows(section)
        if on == "all" or service in on.split(", ")
    ]


def _rows(section: str) -> list[tuple[Documented, str]]:
    """The metrics of a section, each with the services that have it: the engine, if it does not say."""
    text = PAGE.read_text(encoding="utf-8").split(f"\n## {section}\n")[1].split("\n## ")[0]
    # Labels are in braces behind the name, then the type.
    found = re.findall(r"^- `([^`{]+)(?:\{(.+)\})?` \((\w+)(?:; ([\w, ]+))?\): ", text, re.MULTILINE)
    assert len(found) == text.count("\n- `")
    return [
        (Documented(name, kind, frozenset(labels.split(",") if labels else ())), on or "engine") for name, labels, kind, on in found
    ]


@dataclass
class Snapshot:
    """The metrics of a service at one moment."""

    #: Name of a family -> its type. Counters are without `_total`.
    kinds: dict[str, str] = field(default_factory=dict)
    #: Name of a family -> its labels, if it has a series.
    labels: dict[str, frozenset[str]] = field(default_factory=dict)
    values: dict[tuple[str, frozenset[tuple[str, str]]], float] = field(default_factory=dict)

    def value(self, sample: str, labels: Mapping[str, str]) -> float:
        """The value of a series; 0 if it is not there."""
        return self.values.get((sample, frozenset(labels.items())), 0.0)


def snapshot(families: Iterable[Metric]) -> Snapshot:
    """From metric families."""
    taken = Snapshot()
    for family in families:
        taken.kinds[family.name] = family.type
        for sample in family.samples:
            taken.values[sample.name, frozenset(sample.labels.items())] = sample.value
            taken.labels[family.name] = frozenset(sample.labels) - {"le"}
    return taken


async def scraped(port: int | None) -> Snapshot:
    """From a metrics port of this machine."""
    async with httpx.AsyncClient(trust_env=False) as client:
        return parsed((await client.get(f"http://127.0.0.1:{port}/metrics")).text)


def parsed(text: str) -> Snapshot:
    """From Prometheus' text format."""
    return snapshot(text_string_to_metric_families(text))


@dataclass
class Run:
    """What a scenario saw: the metrics at some moments, and numbers that the service told in another way."""

    snapshots: list[Snapshot]
    facts: Mapping[str, float] = field(default_factory=dict)


Scenario = Callable[[], Awaitable[Run]]
#: A number, the name of a fact, or whether a number is right.
Expected = float | str | Callable[[float], bool]


@dataclass(frozen=True)
class Case:
    """How a series moves in a scenario.

    Args:
        grows: of a counter, the difference between the last and the first snapshot; of a histogram, that of its count.
        total: of a histogram, the difference of its sum.
        values: of a gauge, its value in each snapshot.
    """

    metric: str
    scenario: Scenario
    labels: Mapping[str, str] = field(default_factory=dict)
    grows: Expected = 1
    total: Expected | None = None
    values: tuple[Expected, ...] | None = None

    @property
    def id(self) -> str:
        """For pytest."""
        return "-".join([self.metric, *self.labels.values()])


_RUNS: dict[Scenario, Run] = {}


async def run_once(scenario: Scenario) -> Run:
    """What a scenario saw. It runs unless an earlier test ran it."""
    if scenario not in _RUNS:
        _RUNS[scenario] = await scenario()
    return _RUNS[scenario]


async def check(case: Case, row: Documented) -> None:
    """Assert that the series moved in the case's scenario as the case says."""
    run = await run_once(case.scenario)
    last = run.snapshots[-1]
    assert last.kinds[row.name] == row.kind
    assert {row.name: frozenset(case.labels)} == {row.name: row.labels}, "the labels of the case are those of the page"
    assert any(taken.labels.get(row.name) == row.labels for taken in run.snapshots), (
        "the labels of the series are those of the page"
    )
    sample = row.name + _SUFFIXES[row.kind]
    if row.kind == "gauge":
        assert case.values is not None
        assert len(case.values) == len(run.snapshots)
        for taken, expected in zip(run.snapshots, case.values, strict=True):
            _assert(taken.value(sample, case.labels), expected, run)
        return
    _assert(_change(run, sample, case.labels), case.grows, run)
    if row.kind == "histogram":
        most = _change(run, row.name + "_bucket", {**case.labels, "le": "+Inf"})
        assert most == _change(run, sample, case.labels)
        _assert(
            _change(run, row.name + "_sum", case.labels), case.total if case.total is not None else lambda total: total > 0, run
        )


def _change(run: Run, sample: str, labels: Mapping[str, str]) -> float:
    return run.snapshots[-1].value(sample, labels) - run.snapshots[0].value(sample, labels)


def _assert(value: float, expected: Expected, run: Run) -> None:
    if isinstance(expected, str):
        assert value == run.facts[expected]
        assert value > 0, "a fact of 0 shows nothing"
    elif callable(expected):
        assert expected(value), value
    else:
        assert abs(value - expected) < 1e-9, (value, expected)


def missing(cases: Iterable[Case], service: str) -> set[str]:
    """Documented metrics without a case."""
    return documented(service).keys() - {case.metric for case in cases}


def several(scenario: Scenario, changes: Mapping[str, Any], **labels: str) -> list[Case]:
    """Cases of counters and histograms of one scenario: metric -> growth, or (growth of the count, of the sum)."""
    pairs = {name: change if isinstance(change, tuple) else (change, None) for name, change in changes.items()}
    return [Case(name, scenario, labels, grows=grows, total=total) for name, (grows, total) in pairs.items()]


def gauges(scenario: Scenario, values: Mapping[str, tuple[Expected, ...]], **labels: str) -> list[Case]:
    """Cases of gauges of one scenario: metric -> value at each moment."""
    return [Case(name, scenario, labels, values=expected) for name, expected in values.items()]
