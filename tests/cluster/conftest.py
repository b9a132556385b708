"""A real control plane for the chart, and releases in namespaces that enforce PodSecurity `restricted`."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.kubernetes.control_plane import ControlPlane, eventually, find_programs, running
from support.kubernetes.custom_resources import definitions
from support.kubernetes.kubelet import Kubelet, playing
from support.kubernetes.release import Release

_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def _directory(variable: str, content: str) -> Path:
    directory = os.environ.get(variable)
    if not directory:
        pytest.fail(f"{variable} is not set: name the directory with {content}")
    return Path(directory)


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    directory = _directory("KUBERNETES_BIN", "kube-apiserver, kube-controller-manager and etcd")
    with running(find_programs(directory), tmp_path_factory.mktemp("control-plane")) as started:
        yield started


@pytest.fixture(scope="session")
def kubelet(plane: ControlPlane) -> Iterator[Kubelet]:
    with playing(plane) as played:
        yield played


@pytest.fixture
def plain_cluster(plane: ControlPlane) -> ControlPlane:
    """Kubernetes as it comes: no kind of another project."""
    for name in plane.named(_DEFINITIONS):
        plane.call("DELETE", f"{_DEFINITIONS}/{name}")
    eventually(lambda: not plane.list(_DEFINITIONS), "no definition")
    return plane


@pytest.fixture
def full_cluster(plane: ControlPlane) -> ControlPlane:
    """Kubernetes with cert-manager's, KEDA's, the Prometheus operator's and the Gateway API's kinds, as these publish them."""
    directory = _directory("KUBERNETES_CRDS", "the definitions of cert-manager's, KEDA's and other kinds: see docs/kubernetes.md")
    for definition in definitions(directory):
        if definition["metadata"]["name"] not in plane.named(_DEFINITIONS):
            plane.create(definition)

    def established() -> bool:
        found = [one.get("status", {}).get("conditions") or [] for one in plane.list(_DEFINITIONS)]
        return all(any(one["type"] == "Established" and one["status"] == "True" for one in conditions) for conditions in found)

    eventually(established, "definitions in force")
    return plane


@pytest.fixture
def release(plane: ControlPlane, kubelet: Kubelet, numbers: Iterator[int]) -> Iterator[Release]:
    namespace = f"test-{next(numbers)}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/enforce-version": "latest"}
    plane.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}})
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    eventually(lambda: "default" in plane.named(accounts), "the namespace's service account")
    yield Release(plane, namespace)
    kubelet.is_starting, kubelet.are_ending = None, False
    plane.call("DELETE", f"/api/v1/namespaces/{namespace}")


@pytest.fixture(scope="session")
def numbers() -> Iterator[int]:
    return itertools.count(1)
