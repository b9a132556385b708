"""An engine whose model is divided among several pods: a LeaderWorkerSet in the place of its Deployment."""

from __future__ import annotations

from typing import Any

import kubernetes_validate.utils as kubernetes
import pytest
from support.chart import DEFAULT_MODEL, Object, of_kind
from triptych_engine.settings import EngineSettings

from tools.helm.render import HelmError, render

ENGINE = f"{DEFAULT_MODEL}-engine"
GROUP = f"{ENGINE}-nodes"
NODES = {"nodes": 2, "nodeKeySecret": {"name": "secret"}, "settings": {"tensor_parallel_size": 4}, "replicas": 3}
STORAGE = {"pvc": {"accessModes": ["ReadWriteMany"]}}
#: What LeaderWorkerSet puts in front of a container's own variables.
LWS = {"LWS_GROUP_SIZE": "2", "LWS_WORKER_INDEX": "1", "LWS_LEADER_ADDRESS": "group-0.group.default"}


def spec_of(objects: list[Object]) -> Object:
    return dict(of_kind(objects, "LeaderWorkerSet")[GROUP]["spec"])


def templates(objects: list[Object]) -> tuple[Object, Object]:
    """Of the pod that serves, and of the others."""
    template = spec_of(objects)["leaderWorkerTemplate"]
    return template["leaderTemplate"], template["workerTemplate"]


def test_the_group(rendered: Any) -> None:
    objects = rendered(storage=STORAGE, engine=NODES | {"strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}})
    spec = spec_of(objects)
    assert ENGINE not in of_kind(objects, "Deployment")
    assert (spec["replicas"], spec["leaderWorkerTemplate"]["size"]) == (3, 2)
    assert spec["rolloutStrategy"] == {"type": "RollingUpdate", "rollingUpdateConfiguration": {"maxSurge": 0, "maxUnavailable": 1}}
    # A node that is replaced joins again; RecreateGroupOnPodRestart would end what the others have loaded.
    assert spec["leaderWorkerTemplate"]["restartPolicy"] == "None"
    assert spec["startupPolicy"] == "LeaderCreated", "the first pod is not ready before the others are there"


@pytest.mark.parametrize("version", ["1.30", "1.37"])
def test_kubernetes_takes_the_pods(rendered: Any, version: str) -> None:
    for template in templates(rendered(storage=STORAGE, engine=NODES)):
        kubernetes.validate({"apiVersion": "v1", "kind": "Pod", **template}, version, strict=True)


def test_only_the_first_pod_is_called(rendered: Any) -> None:
    objects = rendered(storage=STORAGE, engine=NODES)
    first, others = templates(objects)
    selector = of_kind(objects, "Service")[ENGINE]["spec"]["selector"]
    assert selector.items() <= first["metadata"]["labels"].items()
    assert not selector.items() <= others["metadata"]["labels"].items()
    (container,) = others["spec"]["containers"]
    assert not {"ports", "readinessProbe", "livenessProbe", "startupProbe", "lifecycle"} & set(container)
    rest = {key: value for key, value in first["spec"]["containers"][0].items() if key in container}
    assert rest == container
    assert {**first["spec"], "containers": [], "topologySpreadConstraints": []} == {
        **others["spec"],
        "containers": [],
        "topologySpreadConstraints": [],
    }


def test_the_engine_takes_their_settings(rendered: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = rendered(storage=STORAGE, engine=NODES)
    (container,) = templates(objects)[1]["spec"]["containers"]
    for name, value in of_kind(objects, "ConfigMap")[ENGINE]["data"].items():
        monkeypatch.setenv(name, value)
    for one in container["env"]:
        value = one["value"]
        for name, there in LWS.items():
            value = value.replace(f"$({name})", there)
        monkeypatch.setenv(one["name"], value)
    settings = EngineSettings()
    assert (settings.nnodes, settings.node_rank, settings.master_addr) == (2, 1, "group-0.group.default")
    assert settings.tensor_parallel_size == 4
    (mount,) = (one for one in container["volumeMounts"] if str(settings.node_key_file).startswith(one["mountPath"]))
    (volume,) = (one for one in templates(objects)[1]["spec"]["volumes"] if one["name"] == mount["name"])
    assert volume["secret"]["secretName"] == "secret"


def test_the_pods_of_a_group_reach_each_other_at_any_port(rendered: Any) -> None:
    objects = rendered(storage=STORAGE, engine=NODES, networkPolicy={"enabled": True})
    policies = of_kind(objects, "NetworkPolicy")
    peers = [{"podSelector": {"matchLabels": template["metadata"]["labels"]}} for template in templates(objects)]
    for peer in peers:
        del peer["podSelector"]["matchLabels"]["triptych.internal/claim"]
    for name in (ENGINE, GROUP):
        assert {"from": peers} in policies[name]["spec"]["ingress"]
        assert {"to": peers} in policies[name]["spec"]["egress"]
    assert policies[GROUP]["spec"]["ingress"] == [{"from": peers}], "nobody else calls them"
    assert GROUP not in of_kind(rendered(networkPolicy={"enabled": True}), "NetworkPolicy")


def test_what_scales_and_what_is_evicted(rendered: Any) -> None:
    objects = rendered(storage=STORAGE, engine=NODES, keda={"enabled": True})
    target = of_kind(objects, "ScaledObject")[ENGINE]["spec"]["scaleTargetRef"]
    assert target == {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "name": GROUP}
    selector = of_kind(objects, "PodDisruptionBudget")[ENGINE]["spec"]["selector"]
    (components,) = selector["matchExpressions"]
    for template in templates(objects):
        labels = template["metadata"]["labels"]
        assert selector["matchLabels"].items() <= labels.items()
        assert labels[components["key"]] in components["values"]


@pytest.mark.parametrize(
    ("engine", "others", "why"),
    [
        (NODES | {"nodeKeySecret": {}}, {}, "nodes is 2, and nodeKeySecret.name is empty"),
        (NODES | {"settings": {}}, {}, "settings.tensor_parallel_size is 1; it must be a multiple of nodes, 2"),
        (NODES, {"inferenceGateway": {"enabled": True}}, "nodes is 2, and inferenceGateway.enabled is true"),
        (NODES, {"storage": {}}, "nodes is 2, and the model's claim keeps all pods on one node"),
    ],
    ids=["key", "ranks", "inference-gateway", "claim"],
)
def test_what_is_refused(engine: dict[str, Any], others: dict[str, Any], why: str) -> None:
    with pytest.raises(HelmError, match=why):
        render({"engine": engine, "storage": STORAGE, **others})
