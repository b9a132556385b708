"""Looking things up in what the Helm chart renders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Object = dict[str, Any]
#: What a release with the chart's own values is called.
FULL = "demo-triptych"
DEFAULT_MODEL = f"{FULL}-smollm2-135m-vision"


def of_kind(objects: Sequence[Object], kind: str) -> dict[str, Object]:
    """The objects of a kind, by name."""
    return {found["metadata"]["name"]: found for found in objects if found["kind"] == kind}


def pod_of(objects: Sequence[Object], deployment: str) -> Object:
    """The pod's specification of a Deployment."""
    found: Object = of_kind(objects, "Deployment")[deployment]["spec"]["template"]["spec"]
    return found


def container_of(objects: Sequence[Object], deployment: str) -> Object:
    """The one container of a Deployment, without those that run before it."""
    (found,) = pod_of(objects, deployment)["containers"]
    return dict(found)


def containers_of(objects: Sequence[Object], deployment: str) -> dict[str, Object]:
    """The containers of a Deployment that run together, by name: sidecars in the order in which they start, then the others."""
    pod = pod_of(objects, deployment)
    sidecars = [found for found in pod.get("initContainers", []) if found.get("restartPolicy") == "Always"]
    return {found["name"]: found for found in [*sidecars, *pod["containers"]]}


def environment(objects: Sequence[Object], deployment: str, container: Object | None = None) -> dict[str, str]:
    """The variables of a service whose values are in the rendering: its ConfigMap, and its container's own.

    Args:
        container: one of several of the Deployment.
    """
    container = container or container_of(objects, deployment)
    found: dict[str, str] = {}
    for source in container["envFrom"]:
        found |= of_kind(objects, "ConfigMap")[source["configMapRef"]["name"]]["data"]
    return found | {entry["name"]: entry["value"] for entry in container.get("env", []) if "value" in entry}
