"""ingress.yaml, httproute.yaml: how the gateway is reached from outside."""

from __future__ import annotations

from typing import Any

import pytest
from support.chart import FULL, environment, of_kind

GATEWAY = f"{FULL}-gateway"


def test_off_by_default(rendered: Any) -> None:
    assert not of_kind(rendered(), "Ingress")
    assert not of_kind(rendered(), "HTTPRoute")


def test_ingress(rendered: Any) -> None:
    given = {
        "enabled": True,
        "className": "nginx",
        "annotations": {"a": "b"},
        "hosts": ["x.example.com", "y.example.com"],
        "tlsSecret": "host",
    }
    found = of_kind(rendered(ingress=given), "Ingress")[GATEWAY]
    assert found["metadata"]["annotations"] == {"a": "b"}
    assert found["spec"]["ingressClassName"] == "nginx"
    assert found["spec"]["tls"] == [{"secretName": "host", "hosts": ["x.example.com", "y.example.com"]}]
    assert [rule["host"] for rule in found["spec"]["rules"]] == ["x.example.com", "y.example.com"]
    (path,) = found["spec"]["rules"][0]["http"]["paths"]
    assert path["backend"]["service"] == {"name": GATEWAY, "port": {"name": "http"}}
    plain = of_kind(rendered(ingress={"enabled": True, "hosts": ["x.example.com"]}), "Ingress")[GATEWAY]["spec"]
    assert set(plain) == {"rules"}


def test_http_route(rendered: Any) -> None:
    given = {
        "enabled": True,
        "parentRefs": [{"name": "outer", "namespace": "infra"}],
        "hostnames": ["x.example.com"],
        "requestTimeout": "10m",
    }
    objects = rendered(httpRoute=given, gateway={"service": {"port": 80}})
    spec = of_kind(objects, "HTTPRoute")[GATEWAY]["spec"]
    assert spec["parentRefs"] == given["parentRefs"]
    assert spec["hostnames"] == ["x.example.com"]
    assert spec["rules"] == [{"backendRefs": [{"name": GATEWAY, "port": 80}], "timeouts": {"request": "10m"}}]
    # What the route points to is there.
    assert of_kind(objects, "Service")[GATEWAY]["spec"]["ports"][0]["port"] == 80


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, []),
        ({"ingress": {"enabled": True, "hosts": ["x.example.com", "*.y.example.com"]}}, ["x.example.com", "*.y.example.com"]),
        ({"httpRoute": {"enabled": True, "parentRefs": [{"name": "outer"}], "hostnames": ["x.example.com"]}}, ["x.example.com"]),
        ({"httpRoute": {"enabled": True, "parentRefs": [{"name": "outer"}]}}, ["*"]),
    ],
)
def test_a_gateway_without_keys_takes_the_names_by_which_it_is_reached(
    rendered: Any, values: dict[str, Any], expected: list[str]
) -> None:
    own = environment(rendered(gateway={"settings": {"allowed_hosts": ["mine.example.com"]}}, **values), GATEWAY)
    names = own["TRIPTYCH_GATEWAY_ALLOWED_HOSTS"].split(",")
    assert names[0] == "mine.example.com"
    assert names[1].startswith(f"{GATEWAY}.")
    assert names[2:] == expected
    # A foreign site has no key, so any name will do.
    keyed = environment(rendered(gateway={"apiKeysSecret": {"name": "keys"}}, **values), GATEWAY)
    assert "TRIPTYCH_GATEWAY_ALLOWED_HOSTS" not in keyed
