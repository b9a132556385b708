"""The claim of the gateway's files: one gateway has it, or files are refused."""

from __future__ import annotations

from typing import Any

import pytest
from support.chart import FULL, container_of, environment, of_kind, pod_of

from tools.helm.render import HelmError

GATEWAY = f"{FULL}-gateway"
ON = {"files": {"enabled": True}}


def test_files_are_off_by_default(rendered: Any) -> None:
    objects = rendered()
    assert "TRIPTYCH_GATEWAY_FILES_DIR" not in environment(objects, GATEWAY)
    assert f"{FULL}-files" not in of_kind(objects, "PersistentVolumeClaim")


def test_files_are_in_a_claim_that_outlives_pods_and_releases(rendered: Any) -> None:
    objects = rendered(gateway={"files": {"enabled": True, "size": "50Gi", "storageClassName": "fast"}})
    claim = of_kind(objects, "PersistentVolumeClaim")[f"{FULL}-files"]
    assert claim["spec"] == {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "fast",
        "resources": {"requests": {"storage": "50Gi"}},
    }
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    directory = environment(objects, GATEWAY)["TRIPTYCH_GATEWAY_FILES_DIR"]
    assert {"name": "files", "mountPath": directory} in container_of(objects, GATEWAY)["volumeMounts"]
    assert {"name": "files", "persistentVolumeClaim": {"claimName": f"{FULL}-files"}} in pod_of(objects, GATEWAY)["volumes"]
    # A second pod on another node would wait for the volume of the first.
    assert of_kind(objects, "Deployment")[GATEWAY]["spec"]["strategy"] == {"type": "Recreate"}


def test_a_claim_of_yours(rendered: Any) -> None:
    objects = rendered(gateway={"files": {"enabled": True, "existingClaim": "mine"}})
    assert {"name": "files", "persistentVolumeClaim": {"claimName": "mine"}} in pod_of(objects, GATEWAY)["volumes"]
    assert f"{FULL}-files" not in of_kind(objects, "PersistentVolumeClaim")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"gateway": {**ON, "replicas": 2}}, "there may be 2 gateways"),
        (
            {"gateway": {**ON, "scaling": {"maxReplicas": 3}}, "keda": {"enabled": True, "prometheusAddress": "http://p"}},
            "there may be 3 gateways",
        ),
        ({"gateway": ON, "inferenceGateway": {"enabled": True}}, "each pod has a gateway then"),
        ({"gateway": {"settings": {"files_dir": "/tmp/x"}}}, "files_dir"),
    ],
)
def test_where_files_cannot_be_kept_they_are_refused(rendered: Any, values: Any, message: str) -> None:
    with pytest.raises(HelmError, match=message):
        rendered(**values)
