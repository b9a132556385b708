"""servicemonitor.yaml, dashboards.yaml, rules.yaml."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.chart import FULL, of_kind

from tools.helm.render import CHART, HelmError, render

RULES = """groups:
  - name: triptych
    rules:
      - {alert: Away, expr: triptych_gateway_frontend_ready == 0, annotations: {summary: "{{ $labels.instance }} is away"}}
"""
#: Dashboards have braces of Grafana's own, which Helm must leave alone.
DASHBOARD = json.dumps({"title": "Triptych", "panels": [{"legendFormat": "{{instance}}"}]}, indent=2)


def test_off_by_default(rendered: Any) -> None:
    assert not of_kind(rendered(), "ServiceMonitor")
    assert not of_kind(rendered(), "PrometheusRule")


def test_every_service_is_scraped(rendered: Any) -> None:
    objects = rendered(monitoring={"serviceMonitor": {"enabled": True, "interval": "30s", "labels": {"release": "prometheus"}}})
    monitor = of_kind(objects, "ServiceMonitor")[FULL]
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    ports = {endpoint["port"]: endpoint for endpoint in monitor["spec"]["endpoints"]}
    assert all(endpoint["interval"] == "30s" for endpoint in ports.values())
    assert "scheme" not in ports["http"]
    selector = monitor["spec"]["selector"]["matchLabels"]
    for service in of_kind(objects, "Service").values():
        assert selector.items() <= service["metadata"]["labels"].items()
        assert len(ports.keys() & {port["name"] for port in service["spec"]["ports"]}) == 1
        labels = service["metadata"]["labels"]
        assert set(monitor["spec"]["targetLabels"]) - labels.keys() <= {"triptych.internal/model"}


def test_a_gateway_with_https_is_scraped_so(rendered: Any) -> None:
    https: dict[str, Any] = {"serverName": "triptych.example.com"}
    monitor = {"enabled": True, "https": https}
    objects = rendered(monitoring={"serviceMonitor": monitor}, gateway={"httpsSecret": "host"})
    (_, gateway) = of_kind(objects, "ServiceMonitor")[FULL]["spec"]["endpoints"]
    assert (gateway["port"], gateway["scheme"]) == ("http", "https")
    assert gateway["tlsConfig"] == {"serverName": "triptych.example.com"}
    https["caSecret"] = {"name": "host"}
    objects = rendered(monitoring={"serviceMonitor": monitor}, gateway={"httpsSecret": "host"})
    (_, gateway) = of_kind(objects, "ServiceMonitor")[FULL]["spec"]["endpoints"]
    assert gateway["tlsConfig"]["ca"] == {"secret": {"name": "host", "key": "ca.crt"}}


def test_a_gateway_with_https_is_never_scraped_unverified(rendered: Any) -> None:
    with pytest.raises(HelmError, match=r"monitoring\.serviceMonitor\.https\.serverName"):
        rendered(monitoring={"serviceMonitor": {"enabled": True}}, gateway={"httpsSecret": "host"})


def test_a_gateway_with_keys_is_scraped_with_one(rendered: Any) -> None:
    objects = rendered(monitoring={"serviceMonitor": {"enabled": True, "apiKeySecret": {"name": "operator"}}})
    others, gateway = of_kind(objects, "ServiceMonitor")[FULL]["spec"]["endpoints"]
    assert gateway["authorization"] == {"credentials": {"name": "operator", "key": "api-key"}}
    assert "authorization" not in others


def with_files(chart: Path) -> Path:
    (chart / "files" / "dashboards").mkdir(exist_ok=True)
    (chart / "files" / "dashboards" / "one.json").write_text(DASHBOARD)
    (chart / "files" / "rules.yaml").write_text(RULES)
    return chart


def test_dashboards(chart_copy: Path) -> None:
    values = {"monitoring": {"dashboards": {"enabled": True, "labels": {"grafana_dashboard": "1", "folder": "ai"}}}}
    maps = of_kind(render(values, chart=with_files(chart_copy)), "ConfigMap")
    found = maps[f"{FULL}-dashboard-one"]
    assert found["data"] == {"one.json": DASHBOARD}
    assert {"grafana_dashboard": "1", "folder": "ai"}.items() <= found["metadata"]["labels"].items()
    assert not [name for name in of_kind(render(chart=chart_copy), "ConfigMap") if "dashboard" in name]


def test_rules(chart_copy: Path) -> None:
    rules = {"prometheusRule": True, "configMap": True, "labels": {"release": "prometheus"}}
    objects = render({"monitoring": {"rules": rules}}, chart=with_files(chart_copy))
    rule = of_kind(objects, "PrometheusRule")[FULL]
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    assert rule["spec"]["groups"][0]["rules"][0]["annotations"] == {"summary": "{{ $labels.instance }} is away"}
    assert of_kind(objects, "ConfigMap")[f"{FULL}-rules"]["data"] == {"triptych.yaml": RULES.rstrip()}
    assert f"{FULL}-rules" not in of_kind(render(chart=chart_copy), "ConfigMap")


def test_every_dashboard_and_rule_of_the_chart_is_rendered() -> None:
    files = [*CHART.glob("files/dashboards/*.json"), *CHART.glob("files/rules.yaml")]
    objects = render({"monitoring": {"dashboards": {"enabled": True}, "rules": {"prometheusRule": True}}})
    found = [one for one in objects if one["metadata"]["labels"]["app.kubernetes.io/component"] in ("dashboard", "rules")]
    assert len(found) == len(files)
    for one in found:
        # Kubernetes refuses larger ones.
        assert len(json.dumps(one)) < 1_000_000
