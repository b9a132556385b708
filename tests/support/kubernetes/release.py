"""A release of the Helm chart on a control plane."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.chart import Object
from support.kubernetes.control_plane import ControlPlane, eventually
from tools.helm.render import CHART, RELEASE, helm


class Release:
    """A release of the chart in a namespace of its own."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.plane = plane
        self.namespace = namespace

    def helm(self, *args: str, values: Mapping[str, Any] | None = None) -> str:
        place = ["--kubeconfig", str(self.plane.kubeconfig), "--namespace", self.namespace]
        return helm(*place, *args, values=values)

    def put(self, command: str, chart: Path = CHART, file: Path | None = None, **values: Any) -> str:
        """`helm install` or `helm upgrade`, until all pods of the release are ready; what Helm prints."""
        files = ["--values", str(file)] if file else []
        return self.helm(command, RELEASE, str(chart), "--wait", "--timeout", "120s", *files, values=values)

    def list(self, path: str) -> dict[str, Object]:
        """The objects of a kind in the namespace, by name: `list("apps/v1/deployments")`; the core's without a group."""
        group, _, plural = path.rpartition("/")
        prefix = f"/apis/{group}" if group else "/api/v1"
        return self.plane.named(f"{prefix}/namespaces/{self.namespace}/{plural}")

    def deployments(self) -> dict[str, Object]:
        return self.list("apps/v1/deployments")

    def images(self) -> dict[str, str]:
        """The image of each Deployment."""
        return {name: one["spec"]["template"]["spec"]["containers"][0]["image"] for name, one in self.deployments().items()}

    def check_rolled_out(self) -> None:
        """All replicas of all Deployments become available in the newest version, and no Pod is refused."""

        def waits() -> dict[str, Object]:
            return {name: one["status"] for name, one in self.deployments().items() if not _is_rolled_out(one)}

        try:
            eventually(lambda: not waits(), "a rollout")
        except AssertionError as error:
            raise AssertionError(json.dumps(waits())) from error
        refused = [event["message"] for event in self.list("events").values() if event["reason"] == "FailedCreate"]
        assert not refused


def _is_rolled_out(deployment: Object) -> bool:
    replicas, status = deployment["spec"]["replicas"], deployment["status"]
    is_new = status.get("observedGeneration") == deployment["metadata"]["generation"]
    counts = [status.get(name, 0) for name in ("replicas", "updatedReplicas", "availableReplicas")]
    return is_new and counts == [replicas] * 3
