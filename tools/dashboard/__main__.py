"""Writes the Grafana dashboard helm/triptych/files/dashboards/triptych.json. Change rows.py, not the file.

python -m tools.dashboard [--check]
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from tools.dashboard.panels import Panel
from tools.dashboard.rows import ROWS
from tools.docs.page import ROOT, write_or_check

FILE = ROOT / "helm" / "triptych" / "files" / "dashboards" / "triptych.json"
#: Grafana 11.
_SCHEMA_VERSION = 39
_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_HEIGHT, _STAT_HEIGHT, _WIDTH = 8, 4, 24


def dashboard() -> str:
    """The dashboard as JSON."""
    document = {
        "annotations": {"list": []},
        "editable": True,
        "graphTooltip": 1,
        "links": [],
        "panels": list(_panels()),
        "refresh": "10s",
        "schemaVersion": _SCHEMA_VERSION,
        "tags": ["triptych"],
        "templating": {"list": _variables()},
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "title": "Triptych",
        "uid": "triptych",
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _variables() -> list[dict[str, Any]]:
    def variable(name: str, query: str) -> dict[str, Any]:
        return {
            "name": name,
            "label": name.capitalize(),
            "type": "query",
            "datasource": _DATASOURCE,
            "query": {"query": query, "refId": name},
            "definition": query,
            "refresh": 2,
            "sort": 1,
            "multi": True,
            "includeAll": True,
            "current": {"text": ["All"], "value": ["$__all"]},
        }

    return [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "current": {}},
        variable("model", "label_values(triptych_model_info, model_name)"),
        variable("service", 'label_values(triptych_model_info{model_name=~"$model"}, service)'),
        variable("instance", 'label_values(triptych_model_info{model_name=~"$model", service=~"$service"}, instance)'),
    ]


def _panels() -> Iterable[dict[str, Any]]:
    number, y = 0, 0
    for title, panels in ROWS.items():
        number += 1
        grid = {"h": 1, "w": _WIDTH, "x": 0, "y": y}
        yield {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": grid, "panels": []}
        y += 1
        for height, some in _lines(panels):
            width = _WIDTH // max(len(some), 3)
            for place, panel in enumerate(some):
                number += 1
                yield _panel(panel, number, {"h": height, "w": width, "x": place * width, "y": y})
            y += height


def _lines(panels: Sequence[Panel]) -> Iterable[tuple[int, Sequence[Panel]]]:
    """The panels of a row, line by line: all numbers, then three charts each."""
    stats = [panel for panel in panels if panel.kind == "stat"]
    charts = [panel for panel in panels if panel.kind != "stat"]
    if stats:
        yield _STAT_HEIGHT, stats
    for start in range(0, len(charts), 3):
        yield _HEIGHT, charts[start : start + 3]


def _panel(panel: Panel, number: int, grid: dict[str, int]) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + index), "datasource": _DATASOURCE, "expr": query, "legendFormat": legend, "range": True}
        for index, (query, legend) in enumerate(panel.queries)
    ]
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    options: dict[str, Any]
    if panel.kind == "stat":
        steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
        if panel.thresholds is not None:
            steps += [{"color": color, "value": value} for color, value in zip(("orange", "red"), panel.thresholds, strict=True)]
        defaults |= {"thresholds": {"mode": "absolute", "steps": steps}}
        options = {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value", "graphMode": "area"}
    else:
        stacking = {"mode": "normal" if panel.stacked else "none", "group": "A"}
        opacity = 25 if panel.stacked else 5
        defaults |= {"custom": {"fillOpacity": opacity, "lineWidth": 1, "stacking": stacking, "showPoints": "never"}}
        options = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": _DATASOURCE,
        "gridPos": grid,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": targets,
    }


if __name__ == "__main__":
    write_or_check(dashboard(), FILE, __doc__, "panels of tools/dashboard/rows.py")
