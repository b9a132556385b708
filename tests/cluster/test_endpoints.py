"""Which addresses callers see: what docs/kubernetes.md says of readiness and of ending pods."""

from __future__ import annotations

from typing import Any

import pytest
from support.chart import FULL
from support.kubernetes.control_plane import ControlPlane, eventually
from support.kubernetes.kubelet import Kubelet
from support.kubernetes.release import Release

from tools.helm.render import CHART, RELEASE

pytestmark = pytest.mark.cluster
ENGINE, GATEWAY = f"{FULL}-smollm2-135m-vision-engine", f"{FULL}-gateway"


def conditions(release: Release, service: str) -> list[dict[str, Any]]:
    """What the EndpointSlices of a service say of each address."""
    slices = release.list("discovery.k8s.io/v1/endpointslices").values()
    mine = [one for one in slices if one["metadata"]["labels"]["kubernetes.io/service-name"] == service]
    return [endpoint["conditions"] for one in mine for endpoint in one["endpoints"] or []]


def test_only_the_gateway_is_hidden_until_it_is_ready(plain_cluster: ControlPlane, release: Release, kubelet: Kubelet) -> None:
    kubelet.is_starting = {"app.kubernetes.io/instance": "demo"}
    release.helm("install", RELEASE, str(CHART))
    for service, is_ready in ((ENGINE, True), (GATEWAY, False)):
        (found,) = eventually(lambda service=service: conditions(release, service), f"an address of {service}")
        assert found["ready"] is is_ready, service


def test_an_ending_pod_keeps_its_address_except_the_gateways(
    plain_cluster: ControlPlane, release: Release, kubelet: Kubelet
) -> None:
    release.put("install")
    kubelet.are_ending = True
    for service, is_ready in ((ENGINE, True), (GATEWAY, False)):
        (pod,) = [name for name in release.list("pods") if name.startswith(service)]
        release.plane.call("DELETE", f"/api/v1/namespaces/{release.namespace}/pods/{pod}")
        found = eventually(lambda service=service: [one for one in conditions(release, service) if one["terminating"]], "its end")
        assert [one["ready"] for one in found] == [is_ready], service
