"""Objects of cert-manager and KEDA have the fields that their definitions have.

The packages' models stand for the definitions: the form of durations and PromQL is not checked. No small package has those of the
Gateway API and the Prometheus operator; test_access.py and test_monitoring.py look at each field of these. tests/cluster has a real
API server check all of them by the definitions themselves.
"""

from __future__ import annotations

import importlib
from typing import Any

import pytest

MODELS = {
    "cert-manager.io/v1": "cloudcoil.models.cert_manager.v1",
    "keda.sh/v1alpha1": "cloudcoil.models.keda.v1alpha1",
}


def accepted(found: dict[str, Any]) -> dict[str, Any]:
    """The object as its model reads and writes it: a field that the model does not know is missing. Raises ValidationError."""
    model = getattr(importlib.import_module(MODELS[found["apiVersion"]]), found["kind"])
    return dict(model.model_validate(found).model_dump(mode="json", by_alias=True, exclude_unset=True))


@pytest.mark.parametrize("group", MODELS)
def test_objects_have_the_fields_of_their_definitions(rendered: Any, group: str) -> None:
    objects = rendered(keda={"enabled": True}, tls={"certManager": True}, engine={"scaling": {"minReplicas": 0}})
    found = [one for one in objects if one["apiVersion"] == group]
    assert {one["kind"] for one in found} == ({"Issuer", "Certificate"} if group == "cert-manager.io/v1" else {"ScaledObject"})
    for one in found:
        assert accepted(one) == one


def test_a_misspelt_field_would_be_seen() -> None:
    found = {"apiVersion": "cert-manager.io/v1", "kind": "Certificate", "metadata": {"name": "a"}}
    spec = {"secretName": "a", "issuerRef": {"name": "b"}, "dnsName": ["c"]}
    assert accepted({**found, "spec": spec}) != {**found, "spec": spec}
