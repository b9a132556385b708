"""docs/operations.md names every port."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from triptych_cli.stack.service_flags import SERVICES, settings_class
from triptych_common.settings import CONTROL_PORT_OFFSET

_ROOT = Path(__file__).resolve().parents[3]
_PAGE = (_ROOT / "docs" / "operations.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("service", SERVICES)
def test_ports_are_there(service: str) -> None:
    port = settings_class(service).model_fields["port"].default
    (row,) = re.findall(rf"^\| {service} \| {port} .*$", _PAGE, re.MULTILINE)
    assert service == "gateway" or f"| {port + CONTROL_PORT_OFFSET} |" in row
