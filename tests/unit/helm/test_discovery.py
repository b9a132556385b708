"""`discovery`: how services find pods, and what they are allowed for it."""

from __future__ import annotations

from typing import Any

import pytest
from support.chart import DEFAULT_MODEL, FULL, environment, of_kind, pod_of
from triptych_common.cluster import resolution
from triptych_common.cluster.kubernetes import KubernetesResolver
from triptych_common.cluster.resolution import resolver_of

KUBERNETES = {"discovery": "kubernetes"}
PODS = {"gateway": f"{FULL}-gateway", **{role: f"{DEFAULT_MODEL}-{role}" for role in ("frontend", "encoder", "engine")}}
CALLERS = {"gateway", "frontend", "engine"}


def test_nobody_has_a_right_by_default(rendered: Any) -> None:
    objects = rendered()
    assert not {"Role", "RoleBinding"} & {found["kind"] for found in objects}
    assert not any(pod_of(objects, pod)["automountServiceAccountToken"] for pod in PODS.values())


def test_callers_watch_the_slices_of_those_that_they_call(rendered: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolution, "configuration", lambda: None)
    objects = rendered(**KUBERNETES)
    targets = {
        role: [value for name, value in environment(objects, pod).items() if name.endswith("_ADDRESSES")]
        for role, pod in PODS.items()
    }
    assert targets == {
        "gateway": [f"kubernetes:{PODS['frontend']}.ai:50054"],
        "frontend": [f"kubernetes:{PODS['encoder']}.ai:50052", f"kubernetes:{PODS['engine']}.ai:50053"],
        "encoder": [],
        "engine": [f"kubernetes:{PODS['encoder']}.ai:50052"],
    }
    for found in targets.values():
        for target in found:
            assert isinstance(resolver_of([target], "any"), KubernetesResolver)


def test_callers_and_no_others_may_read_slices(rendered: Any) -> None:
    objects = rendered(**KUBERNETES)
    for role, pod in PODS.items():
        assert pod_of(objects, pod)["automountServiceAccountToken"] is (role in CALLERS)
    (rule,) = of_kind(objects, "Role")[f"{FULL}-discovery"]["rules"]
    assert rule == {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get", "list", "watch"]}
    bound = of_kind(objects, "RoleBinding")[f"{FULL}-discovery"]
    assert bound["roleRef"]["name"] == f"{FULL}-discovery"
    assert {subject["name"] for subject in bound["subjects"]} == {f"{FULL}-{role}" for role in CALLERS}
    assert {subject["namespace"] for subject in bound["subjects"]} == {"ai"}


def test_a_foreign_account_is_bound_once(rendered: Any) -> None:
    bound = of_kind(rendered(**KUBERNETES, serviceAccount={"create": False}), "RoleBinding")[f"{FULL}-discovery"]
    assert [subject["name"] for subject in bound["subjects"]] == ["default"]


@pytest.mark.parametrize("peers", [[], [{"ipBlock": {"cidr": "10.0.0.1/32"}}]])
def test_callers_reach_the_api_server(rendered: Any, peers: list[Any]) -> None:
    objects = rendered(**KUBERNETES, networkPolicy={"apiServerTo": peers, "allowMediaUrls": False})
    for role, pod in PODS.items():
        rules = [rule for rule in of_kind(objects, "NetworkPolicy")[pod]["spec"]["egress"] if {"port": 6443} in rule["ports"]]
        assert rules == (
            [{"ports": [{"port": 443}, {"port": 6443}], **({"to": peers} if peers else {})}] if role in CALLERS else []
        )
