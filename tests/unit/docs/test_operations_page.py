"""docs/operations.md names every metric and every port."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from triptych_cli.stack.service_flags import SERVICES, settings_class
from triptych_common.settings import CONTROL_PORT_OFFSET
from triptych_gateway.metrics import Metrics

_ROOT = Path(__file__).resolve().parents[3]
_PAGE = (_ROOT / "docs" / "operations.md").read_text(encoding="utf-8")


def test_the_gateways_metrics_are_there() -> None:
    own = [family.name for family in Metrics().registry.collect() if family.name.startswith("triptych_")]
    assert len(own) > 10
    assert [name for name in own if f"`{name}`" not in _PAGE] == []


@pytest.mark.parametrize("service", ["encoder", "engine", "frontend"])
def test_metrics_of_services_are_there(service: str) -> None:
    source = (_ROOT / "services" / f"triptych_{service}" / "metrics.py").read_text(encoding="utf-8")
    names = [f"triptych_{service}_{name}" for name in re.findall(r'f"\{_PREFIX\}_(\w+)"', source)]
    assert len(names) > 1
    assert [name for name in names if f"`{name}`" not in _PAGE] == []


@pytest.mark.parametrize("service", SERVICES)
def test_ports_are_there(service: str) -> None:
    port = settings_class(service).model_fields["port"].default
    (row,) = re.findall(rf"^\| {service} \| {port} .*$", _PAGE, re.MULTILINE)
    assert service == "gateway" or f"| {port + CONTROL_PORT_OFFSET} |" in row
