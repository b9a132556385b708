"""Releases are upgraded and rolled back on a real API server, which refuses changes of what cannot change."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from support.chart import FULL
from support.kubernetes.control_plane import ControlPlane, eventually
from support.kubernetes.kubelet import Kubelet
from support.kubernetes.release import Release

from tools.docs.page import ROOT
from tools.helm.render import CHART, RELEASE, HelmError, values_files

pytestmark = pytest.mark.cluster
FRONTEND, ENGINE = f"{FULL}-smollm2-135m-vision-frontend", f"{FULL}-smollm2-135m-vision-engine"
FOLDER = CHART.relative_to(ROOT)


def git(*args: str) -> str:
    return subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture(scope="module")
def last_chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chart of the last commit that changed it and from which the present one differs."""
    commits = git("log", "--format=%H", "--", str(FOLDER)).split()
    commit = next((one for one in commits if git("diff", "--stat", one, "--", str(FOLDER))), None)
    if commit is None:
        pytest.fail("the history has no other version of the chart: is this a shallow clone?")
    folder = tmp_path_factory.mktemp("last")
    archive = subprocess.run(["git", "archive", commit, str(FOLDER)], cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x"], cwd=folder, input=archive, check=True)
    return folder / FOLDER


@pytest.mark.parametrize("name", values_files())
def test_from_the_last_commits_chart_and_back(full_cluster: ControlPlane, release: Release, last_chart: Path, name: str) -> None:
    file = values_files()[name]
    last_file = last_chart / file.relative_to(CHART) if file else None
    release.put("install", last_chart, last_file if last_file and last_file.exists() else None)
    release.check_rolled_out()
    before = release.images()
    # The present version is another one, so that all Pods are replaced.
    release.put("upgrade", file=file, image={"tag": "next"})
    release.check_rolled_out()
    assert all(image.endswith(":next") for image in release.images().values())
    release.helm("rollback", RELEASE, "--wait", "--timeout", "120s")
    release.check_rolled_out()
    assert release.images() == before


def test_a_rollout_waits_for_pods_that_are_ready(full_cluster: ControlPlane, release: Release, kubelet: Kubelet) -> None:
    release.put("install", engine={"replicas": 2})
    kubelet.is_starting = {"app.kubernetes.io/component": "engine"}
    with pytest.raises(HelmError, match="deadline exceeded"):
        release.helm(
            "upgrade",
            RELEASE,
            str(CHART),
            "--wait",
            "--timeout",
            "4s",
            values={"engine": {"replicas": 2}, "image": {"tag": "next"}},
        )
    eventually(lambda: release.deployments()[ENGINE]["status"].get("updatedReplicas") == 1, "the first engine of the new version")
    # The engines of before still answer while it loads.
    assert release.deployments()[ENGINE]["status"]["availableReplicas"] == 2
    kubelet.is_starting = None
    eventually(lambda: release.deployments()[ENGINE]["status"].get("updatedReplicas") == 2, "the rest of the rollout")
    release.put("upgrade", engine={"replicas": 2}, image={"tag": "next"})
    release.check_rolled_out()


@pytest.mark.parametrize("change", [{"image": {"pullSecrets": [{"name": "pull"}]}}, {"serviceAccount": {"create": False}}], ids=str)
def test_a_job_whose_pod_changes_is_replaced(full_cluster: ControlPlane, release: Release, change: dict[str, object]) -> None:
    storage = {"type": "pvc"}
    release.put("install", storage=storage)
    (before,) = release.list("batch/v1/jobs")
    release.put("upgrade", storage=storage, **change)
    (after,) = release.list("batch/v1/jobs")
    assert after != before


def test_autoscaling_leaves_the_number_of_replicas_alone(full_cluster: ControlPlane, release: Release) -> None:
    """Neither turning KEDA on nor a later upgrade changes it."""

    def replicas() -> int:
        return int(release.deployments()[FRONTEND]["spec"]["replicas"])

    release.put("install", frontend={"replicas": 3})
    release.put("upgrade", keda={"enabled": True}, frontend={"replicas": 3})
    assert replicas() == 3
    scale = f"/apis/apps/v1/namespaces/{release.namespace}/deployments/{FRONTEND}/scale"
    release.plane.merge(scale, {"spec": {"replicas": 5}})
    values = {"keda": {"enabled": True}, "frontend": {"replicas": 3, "settings": {"log_level": "DEBUG"}}}
    release.put("upgrade", **values)
    assert replicas() == 5
    release.check_rolled_out()
    release.helm("rollback", RELEASE, "2")
    assert replicas() == 3


def test_certificates_stay_until_one_is_removed(plain_cluster: ControlPlane, release: Release) -> None:
    def files() -> dict[str, dict[str, str]]:
        return {name: one["data"] for name, one in release.list("secrets").items() if one["type"] == "kubernetes.io/tls"}

    release.put("install")
    first = files()
    assert sorted(first) == [
        f"{FULL}-{role}-certificate" for role in ("client", "encoder", "engine", "frontend", "gateway", "operator")
    ]
    assert len({one["ca.crt"] for one in first.values()}) == 1
    release.put("upgrade", settings={"log_level": "DEBUG"})
    assert files() == first
    release.plane.call("DELETE", f"/api/v1/namespaces/{release.namespace}/secrets/{FULL}-engine-certificate")
    release.put("upgrade")
    second = files()
    assert second.keys() == first.keys()
    assert not {one["tls.key"] for one in first.values()} & {one["tls.key"] for one in second.values()}
    assert len({one["ca.crt"] for one in second.values()}) == 1
    release.helm("rollback", RELEASE, "2")
    assert files() == first


def test_a_release_is_switched_to_pods_for_an_inference_gateway_and_back(full_cluster: ControlPlane, release: Release) -> None:
    """Names, selectors and cluster addresses of objects that stay cannot change."""
    outside = {"gateway": {"service": {"port": 80}}}
    release.put("install", **outside)
    release.put("upgrade", **outside, inferenceGateway={"enabled": True, "endpointPicker": {"name": "epp"}})
    release.check_rolled_out()
    assert list(release.deployments()) == [ENGINE]
    service = release.list("services")[f"{FULL}-smollm2-135m-vision-gateway"]["spec"]
    assert [(port["port"], port["targetPort"]) for port in service["ports"]] == [(80, "http"), (50051, "grpc")]
    release.put("upgrade", **outside)
    release.check_rolled_out()
    assert len(release.deployments()) == 4
