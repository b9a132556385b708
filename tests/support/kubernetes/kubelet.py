"""Plays a node for a control plane that has none: the scheduler, the kubelet and the provisioner of volumes."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator
from typing import Any

import httpx

from support.chart import Object
from support.kubernetes.control_plane import ControlPlane

_NODE = "node"
_TIME = "2026-01-01T00:00:00Z"
#: Annotation of a Pod that a process of this machine stands for: its address.
ADDRESS = "tests/address"
#: Seconds between two looks.
_INTERVAL_S = 0.2


class Kubelet:
    """While it runs, Pods get a node and an address, and then are ready, or have ended; deleted Pods go; claims are bound."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._numbers = itertools.count(1)
        self._stop = threading.Event()
        #: Pods with these labels are not ready, because their containers still load.
        self.is_starting: dict[str, str] | None = None
        #: Whether deleted Pods still end their requests.
        self.are_ending = False

    def run(self) -> None:
        self._plane.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": _NODE}})
        while not self._stop.wait(_INTERVAL_S):
            for pod in self._plane.list("/api/v1/pods"):
                # It may be gone by now.
                with contextlib.suppress(httpx.HTTPStatusError):
                    self._look(pod, f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}")
            for claim in self._plane.list("/api/v1/persistentvolumeclaims"):
                if claim["status"].get("phase") == "Pending":
                    self._provision(claim)

    def stop(self) -> None:
        self._stop.set()

    def _look(self, pod: Object, path: str) -> None:
        if "nodeName" not in pod["spec"]:
            target = {"apiVersion": "v1", "kind": "Node", "name": _NODE}
            binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod["metadata"]["name"]}, "target": target}
            self._plane.call("POST", f"{path}/binding", binding)
        if "deletionTimestamp" in pod["metadata"]:
            if not self.are_ending:
                self._plane.call("DELETE", path, gracePeriodSeconds="0")
            return
        starting = self.is_starting is not None and self.is_starting.items() <= pod["metadata"]["labels"].items()
        ends = pod["spec"]["restartPolicy"] != "Always"
        phase, ready = "Succeeded" if ends else "Running", not starting and not ends
        if pod["status"]["phase"] != phase or (ready and not _is_ready(pod)):
            number = next(self._numbers)
            known = pod["status"].get("podIP") or pod["metadata"].get("annotations", {}).get(ADDRESS)
            address = known or f"10.1.{number // 250}.{number % 250 + 1}"
            self._plane.merge(f"{path}/status", {"status": _status(pod, address, ready=ready, phase=phase)})

    def _provision(self, claim: Object) -> None:
        metadata, spec = claim["metadata"], claim["spec"]
        volume = {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": f"for-{metadata['uid']}"},
            "spec": {
                "capacity": spec["resources"]["requests"],
                "accessModes": spec["accessModes"],
                "storageClassName": spec.get("storageClassName", ""),
                "claimRef": {"namespace": metadata["namespace"], "name": metadata["name"], "uid": metadata["uid"]},
                "hostPath": {"path": "/nowhere"},
            },
        }
        # It may be there already.
        with contextlib.suppress(httpx.HTTPStatusError):
            self._plane.create(volume)


def _is_ready(pod: Object) -> bool:
    return any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions", []))


def _status(pod: Object, address: str, *, ready: bool, phase: str) -> dict[str, Any]:
    ended = {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": _TIME, "finishedAt": _TIME}}
    state = ended if phase == "Succeeded" else {"running": {"startedAt": _TIME}}
    conditions = {"PodScheduled": True, "Initialized": True, "ContainersReady": ready, "Ready": ready}
    return {
        "phase": phase,
        "startTime": _TIME,
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": [{"type": name, "status": str(value), "lastTransitionTime": _TIME} for name, value in conditions.items()],
        "containerStatuses": [
            {
                "name": one["name"],
                "image": one["image"],
                "imageID": "",
                "ready": ready,
                "started": ready,
                "restartCount": 0,
                "state": state,
            }
            for one in pod["spec"]["containers"]
        ],
    }


@contextlib.contextmanager
def playing(plane: ControlPlane) -> Iterator[Kubelet]:
    """A kubelet in a thread. A failure of it is raised at the end."""
    kubelet = Kubelet(plane)
    failed: list[BaseException] = []

    def run() -> None:
        try:
            kubelet.run()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="kubelet")
    thread.start()
    try:
        yield kubelet
    finally:
        kubelet.stop()
        thread.join()
    if failed:
        raise failed[0]
