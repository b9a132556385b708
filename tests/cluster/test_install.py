"""The chart is installed on a real API server: all objects admitted, all Deployments rolled out, under PodSecurity `restricted`."""

from __future__ import annotations

import copy

import httpx
import pytest
from support.kubernetes.control_plane import ControlPlane, eventually
from support.kubernetes.release import Release

from tools.helm.render import CHART, RELEASE, HelmError, render, values_files

pytestmark = pytest.mark.cluster


def test_the_defaults_need_nothing_but_kubernetes(plain_cluster: ControlPlane, release: Release) -> None:
    text = release.put("install")
    release.check_rolled_out()
    assert sorted(name.rpartition("-")[2] for name in release.deployments()) == ["encoder", "engine", "frontend", "gateway"]
    assert "Triptych serves smollm2-135m-vision." in text
    release.helm("test", RELEASE)


def test_rights_in_the_namespace_are_enough(plain_cluster: ControlPlane, release: Release) -> None:
    """What the chart looks up in the cluster is in the namespace."""
    place = {"namespace": release.namespace}
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "deployer", **place}}
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "deployer", **place},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "admin"},
        "subjects": [{"kind": "ServiceAccount", "name": "deployer", **place}],
    }
    for found in (account, binding):
        plain_cluster.create(found)
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    path = f"/api/v1/namespaces/{release.namespace}/serviceaccounts/deployer/token"
    token = plain_cluster.call("POST", path, request)["status"]["token"]
    for command in ("install", "upgrade"):
        release.helm(command, RELEASE, str(CHART), "--kube-token", token)
    with pytest.raises(HelmError, match="forbidden"):
        release.helm("install", "other", str(CHART), "--kube-token", token, "--namespace", "kube-system")


def test_an_uninstalled_release_can_be_installed_again(plain_cluster: ControlPlane, release: Release) -> None:
    release.put("install")
    claims = release.list("persistentvolumeclaims")
    release.helm("uninstall", RELEASE, "--wait")
    assert release.list("persistentvolumeclaims").keys() == claims.keys()  # what took hours to download
    # A claim's access modes cannot change.
    release.put("install", storage={"pvc": {"accessModes": ["ReadWriteMany"]}})
    release.check_rolled_out()
    (claim,) = release.list("persistentvolumeclaims").values()
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]


@pytest.mark.parametrize("name", values_files())
def test_every_values_file(full_cluster: ControlPlane, release: Release, name: str) -> None:
    file = values_files()[name]
    release.put("install", file=file)
    release.check_rolled_out()
    expected = sum(found["spec"]["replicas"] for found in release.deployments().values())
    running = [pod for pod in release.list("pods").values() if pod["status"]["phase"] == "Running"]
    assert len(running) == expected
    # Jobs that fetch models have ended.
    for job in release.list("batch/v1/jobs").values():
        eventually(
            lambda job=job: release.list("batch/v1/jobs")[job["metadata"]["name"]]["status"].get("succeeded"), "the Job's end"
        )
    release.helm("test", RELEASE)


@pytest.mark.parametrize("name", values_files())
def test_no_object_has_a_field_that_its_kind_has_not(full_cluster: ControlPlane, release: Release, name: str) -> None:
    values = {
        "monitoring": {"serviceMonitor": {"enabled": True}, "rules": {"prometheusRule": True}},
        "httpRoute": {"enabled": True, "parentRefs": [{"name": "outer"}], "hostnames": ["a.example.com"]},
        "tls": {"certManager": True},
        "keda": {"enabled": True},
    }
    objects = render(values, file=values_files()[name])
    assert {"Certificate", "Issuer", "ScaledObject", "ServiceMonitor", "PrometheusRule", "HTTPRoute"} <= {
        one["kind"] for one in objects
    }
    for found in objects:
        given = {**found, "metadata": {**found["metadata"], "namespace": release.namespace}}
        full_cluster.create(given, dryRun="All", fieldValidation="Strict")


def test_a_misspelt_field_is_refused(full_cluster: ControlPlane, release: Release) -> None:
    objects = render({"keda": {"enabled": True}})
    found = copy.deepcopy(next(one for one in objects if one["kind"] == "ScaledObject"))
    found["metadata"]["namespace"] = release.namespace
    found["spec"]["maxReplicas"] = found["spec"].pop("maxReplicaCount")
    with pytest.raises(httpx.HTTPStatusError, match="maxReplicas"):
        full_cluster.create(found, dryRun="All", fieldValidation="Strict")


def test_a_pod_that_breaks_the_rules_is_refused(full_cluster: ControlPlane, release: Release) -> None:
    """Else the other tests would show nothing of PodSecurity."""
    values = {"gateway": {"extraVolumes": [{"name": "host", "hostPath": {"path": "/"}}]}}
    with pytest.raises(HelmError):
        release.helm("install", RELEASE, str(CHART), "--wait", "--timeout", "3s", values=values)
    refused = [event["message"] for event in release.list("events").values() if event["reason"] == "FailedCreate"]
    assert any("violates PodSecurity" in message and "hostPath" in message for message in refused)
