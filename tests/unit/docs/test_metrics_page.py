"""docs/metrics.md is well-formed. What the services export is compared with it in tests/contract/metrics/."""

from __future__ import annotations

import re

import pytest
from support.metrics import PAGE, documented, documented_with_certificates, documented_with_tier

SERVICES = ("gateway", "frontend", "encoder", "engine")


@pytest.mark.parametrize("service", SERVICES)
def test_rows_have_a_type_and_the_services_prefix(service: str) -> None:
    rows, certificates = documented(service), documented_with_certificates(service)
    assert (len(rows) > 10, len(certificates) > 1) == (True, True)
    for row in (*rows.values(), *certificates.values()):
        assert row.kind in ("counter", "gauge", "histogram"), row.name
        assert row.name.startswith((f"triptych_{service}_", "triptych_build_info", "triptych_model_info", "vllm:")), row.name


def test_names_outside_of_the_tables_exist() -> None:
    known = set().union(
        *(documented(service) | documented_with_certificates(service) | documented_with_tier(service) for service in SERVICES)
    )
    named = set(re.findall(r"\b(?:triptych_(?:{})_\w+|vllm:\w+)".format("|".join(SERVICES)), PAGE.read_text(encoding="utf-8")))
    # Named to say that it does not exist.
    assert named - known == {"vllm:lora_requests_info"}
