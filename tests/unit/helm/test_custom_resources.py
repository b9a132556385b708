"""Objects of other projects' kinds have the fields and values that their published definitions allow.

A real API server also checks rules that only it can evaluate: tests/cluster.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
from jsonschema import ValidationError
from support.chart import Object
from support.kubernetes.custom_resources import check, kinds

from tools.helm.render import values_files

#: Switches that make every kind.
VALUES: Object = {
    "keda": {"enabled": True},
    "tls": {"certManager": True},
    "engine": {"scaling": {"minReplicas": 0}},
    "monitoring": {"serviceMonitor": {"enabled": True, "apiKeySecret": {"name": "key"}}, "rules": {"prometheusRule": True}},
    "httpRoute": {"enabled": True, "parentRefs": [{"name": "outer"}], "hostnames": ["a.example.com"]},
}


@pytest.mark.parametrize("name", values_files())
def test_objects_fit_their_definitions(rendered: Any, name: str) -> None:
    found = [one for one in rendered(file=name, **VALUES) if one["kind"] in kinds()]
    assert {one["kind"] for one in found} == kinds()
    for one in found:
        check(one)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("Certificate", {"dnsName": ["a"]}),
        ("Certificate", {"usages": ["everything"]}),
        ("Issuer", {"ca": {"secret": "a"}}),
        ("ScaledObject", {"maxReplicas": 4}),
        ("ScaledObject", {"triggers": [{"type": "prometheus"}]}),
        ("ServiceMonitor", {"endpoints": [{"port": "http", "interval": "often"}]}),
        ("PrometheusRule", {"groups": [{"name": "a", "rules": [{"alert": "b"}]}]}),
        ("HTTPRoute", {"rules": [{"backendRefs": [{"name": "a", "port": 0}]}]}),
    ],
    ids=str,
)
def test_a_field_or_value_that_is_wrong_would_be_seen(rendered: Any, kind: str, change: Object) -> None:
    found = copy.deepcopy(next(one for one in rendered(**VALUES) if one["kind"] == kind))
    check(found)
    found["spec"] |= change
    with pytest.raises(ValidationError):
        check(found)
