"""The dashboard and the alert rules use only metrics and labels that exist."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import promql_parser as promql
import pytest
import yaml
from support.metrics import documented, documented_with_certificates

from tools.dashboard.__main__ import FILE, dashboard

RULES = FILE.parents[1] / "rules.yaml"
RULES_TEST = Path(__file__).parent / "rules_test.yaml"
SERVICES = ("gateway", "frontend", "encoder", "engine")
#: Set by Prometheus, or part of a histogram.
OTHER_LABELS = frozenset({"instance", "job", "namespace", "le"})
#: Of prometheus_client's ProcessCollector.
PROCESS = {
    "process_start_time_seconds", "process_resident_memory_bytes", "process_virtual_memory_bytes", "process_cpu_seconds_total",
    "process_open_fds", "process_max_fds",
}  # fmt: skip


def exported() -> dict[str, frozenset[str]]:
    """All series that services export: name -> labels."""
    series: dict[str, frozenset[str]] = dict.fromkeys({*PROCESS, "up"}, frozenset())
    for service in SERVICES:
        for row in (documented(service) | documented_with_certificates(service)).values():
            suffixes = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_sum", "_count"]}[row.kind]
            series.update((row.name + suffix, row.labels) for suffix in suffixes)
    return series


def dashboard_queries() -> Iterator[tuple[str, str]]:
    """(Title, PromQL) of each query, with the variables that Grafana fills in."""
    for panel in json.loads(dashboard())["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"].replace("$__rate_interval", "5m")


def rule_queries() -> Iterator[tuple[str, str]]:
    for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]


def selectors(query: str) -> list[promql.VectorSelector]:
    found: list[promql.VectorSelector] = []

    def visit(node: object) -> None:
        if isinstance(node, promql.VectorSelector):
            found.append(node)

    promql.walk(promql.parse(query), visit)
    return found


def grouped_by(query: str) -> set[str]:
    """The labels that aggregations of a query keep, and that its joins are on."""
    found: set[str] = set()

    def visit(node: object) -> None:
        if isinstance(node, promql.AggregateExpr) and node.modifier is not None:
            found.update(node.modifier.labels)
        if isinstance(node, promql.BinaryExpr) and node.modifier is not None and node.modifier.matching is not None:
            found.update(node.modifier.matching.labels)

    promql.walk(promql.parse(query), visit)
    return found


def assert_exists(query: str) -> None:
    """Each metric of the query is exported, and has each label that the query asks it for."""
    series, labels = exported(), set(OTHER_LABELS)
    assert selectors(query)
    for selector in selectors(query):
        assert selector.name in series, f"{selector.name} does not exist"
        own = series[selector.name] | OTHER_LABELS
        for matcher in selector.matchers.matchers:
            assert matcher.name in own, f"{selector.name} has no label {matcher.name}"
        labels |= series[selector.name]
    assert grouped_by(query) <= labels


@pytest.mark.parametrize(("title", "query"), [*dashboard_queries(), *rule_queries()])
def test_metrics_and_labels_exist(title: str, query: str) -> None:
    assert_exists(query)


@pytest.mark.parametrize(
    "query",
    [
        "triptych_engine_nothing",
        "rate(triptych_engine_preemptions[5m])",
        "histogram_quantile(0.5, sum by (le) (rate(triptych_engine_queue_seconds_total[5m])))",
        'triptych_engine_running_requests{model="x"}',
        "sum by (finish_reason) (rate(triptych_engine_errors_total[5m]))",
    ],
)
def test_a_wrong_query_is_found(query: str) -> None:
    with pytest.raises(AssertionError):
        assert_exists(query)


def test_the_file_is_what_the_script_writes() -> None:
    assert FILE.read_text(encoding="utf-8") == dashboard(), "run `make docs`"


def test_each_variable_narrows_the_next_one() -> None:
    datasource, *variables = json.loads(dashboard())["templating"]["list"]
    names = [variable["name"] for variable in variables]
    assert (datasource["name"], names) == ("datasource", ["model", "service", "instance"])
    for index, variable in enumerate(variables):
        assert [name for name in names if f"${name}" in variable["definition"]] == names[:index]
        # "All" must stand for the values that are left, not for everything.
        assert "allValue" not in variable


def test_panels_do_not_overlap() -> None:
    places: set[tuple[int, int]] = set()
    for panel in json.loads(dashboard())["panels"]:
        grid = panel["gridPos"]
        own = {(x, y) for x in range(grid["x"], grid["x"] + grid["w"]) for y in range(grid["y"], grid["y"] + grid["h"])}
        assert max(x for x, _ in own) < 24
        assert not own & places, panel["title"]
        places |= own


def test_each_alert_has_a_test() -> None:
    tested = {case["alertname"] for test in yaml.safe_load(RULES_TEST.read_text())["tests"] for case in test["alert_rule_test"]}
    assert tested == {alert for alert, _ in rule_queries()}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian: apt-get install prometheus)")
def test_the_alerts_fire_when_they_should() -> None:
    for command in (["check", "rules", str(RULES)], ["test", "rules", str(RULES_TEST)]):
        done = subprocess.run(["promtool", *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
