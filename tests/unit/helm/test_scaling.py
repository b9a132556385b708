"""scaledobjects.yaml, disruptionbudgets.yaml, and the spread of pods."""

from __future__ import annotations

import re
from typing import Any

from support.chart import DEFAULT_MODEL, FULL, container_of, of_kind, pod_of

from tools.docs.page import ROOT
from tools.helm.render import NAMESPACE

GATEWAY, FRONTEND, ENCODER, ENGINE = (
    f"{FULL}-gateway",
    f"{DEFAULT_MODEL}-frontend",
    f"{DEFAULT_MODEL}-encoder",
    f"{DEFAULT_MODEL}-engine",
)
METRICS_PAGE = ROOT / "docs" / "metrics.md"


def replicas(objects: Any) -> dict[str, int]:
    return {name: found["spec"]["replicas"] for name, found in of_kind(objects, "Deployment").items()}


def test_off_by_default(rendered: Any) -> None:
    assert not of_kind(rendered(), "ScaledObject")
    assert replicas(rendered()) == {GATEWAY: 1, FRONTEND: 1, ENCODER: 1, ENGINE: 1}


def test_gateways_and_frontends_by_what_is_in_flight(rendered: Any) -> None:
    scaling = {"minReplicas": 2, "maxReplicas": 7, "liveRequests": 50}
    objects = rendered(keda={"enabled": True}, gateway={"replicas": 3, "scaling": scaling})
    scaled = of_kind(objects, "ScaledObject")
    spec = scaled[GATEWAY]["spec"]
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (2, 7)
    (flight,) = spec["triggers"]
    assert flight["metadata"]["query"] == f'sum(triptych_gateway_requests_in_flight{{namespace="ai",service="{GATEWAY}"}})'
    assert (flight["metricType"], flight["metadata"]["threshold"]) == ("AverageValue", "50")
    (calls,) = scaled[FRONTEND]["spec"]["triggers"]
    assert calls["metadata"]["query"] == f'sum(triptych_frontend_live_requests{{namespace="ai",service="{FRONTEND}"}})'
    # Several gateways need stores that they share.
    assert of_kind(rendered(keda={"enabled": True}), "ScaledObject")[GATEWAY]["spec"]["maxReplicaCount"] == 1
    # A Deployment without a number has 1. Where there is a release, its own number stays: tests/cluster.
    assert replicas(objects) == {GATEWAY: 3, FRONTEND: 1, ENCODER: 1, ENGINE: 1}


def test_the_pace_of_scaling(rendered: Any) -> None:
    def behavior(**keda: Any) -> Any:
        (found, *others) = of_kind(rendered(keda={"enabled": True, **keda}), "ScaledObject").values()
        assert all(other["spec"].get("advanced") == found["spec"].get("advanced") for other in others)
        return found["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]

    assert behavior()["scaleDown"]["stabilizationWindowSeconds"] == 300
    assert behavior(behavior={"scaleUp": {"stabilizationWindowSeconds": 60}})["scaleUp"] == {"stabilizationWindowSeconds": 60}


def test_engines_and_encoders_by_their_queues(rendered: Any) -> None:
    objects = rendered(keda={"enabled": True}, engine={"scaling": {"maxReplicas": 9, "waitingRequests": 3}})
    scaled = of_kind(objects, "ScaledObject")
    assert set(scaled) == {GATEWAY, FRONTEND, ENCODER, ENGINE}
    spec = scaled[ENGINE]["spec"]
    assert spec["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": ENGINE}
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (1, 9)
    waiting, cache = spec["triggers"]
    assert waiting["metadata"]["query"] == f'sum(triptych_engine_waiting_requests{{namespace="ai",service="{ENGINE}"}})'
    assert (waiting["metricType"], waiting["metadata"]["threshold"]) == ("AverageValue", "3")
    assert cache["metadata"]["query"] == f'avg(triptych_engine_kv_cache_usage_ratio{{namespace="ai",service="{ENGINE}"}})'
    assert (cache["metricType"], cache["metadata"]["threshold"]) == ("Value", "0.8")
    (queue,) = scaled[ENCODER]["spec"]["triggers"]
    assert queue["metadata"]["query"] == f'sum(triptych_encoder_queue_length{{namespace="ai",service="{ENCODER}"}})'


def test_an_idle_model_goes_to_zero_and_comes_back_with_a_call(rendered: Any) -> None:
    objects = rendered(keda={"enabled": True, "idleSeconds": 60}, engine={"scaling": {"minReplicas": 0}})
    spec = of_kind(objects, "ScaledObject")[ENGINE]["spec"]
    assert (spec["minReplicaCount"], spec["cooldownPeriod"]) == (0, 60)
    calls = spec["triggers"][-1]["metadata"]
    # Requests wait at the gateway. The model's frontends stay, and count the calls that they refuse.
    assert f'service="{FRONTEND}"' in calls["query"]
    waiting = (
        f'triptych_gateway_model_requests_waiting{{namespace="{NAMESPACE}",service="{GATEWAY}",model_name="smollm2-135m-vision"}}'
    )
    assert waiting in calls["query"]
    environment = of_kind(objects, "ConfigMap")[GATEWAY]["data"]
    assert environment["TRIPTYCH_GATEWAY_EXPECTED_MODELS"] == "smollm2-135m-vision"
    assert environment["TRIPTYCH_GATEWAY_MODEL_WAIT_S"] == "300"
    assert calls["query"].startswith("clamp_max(")  # one engine for any number of calls; further ones by the other triggers
    assert (calls["threshold"], calls["activationThreshold"]) == ("1", "0")
    # A full cache keeps no engine, since its ratio is at most 1.
    assert spec["triggers"][1]["metadata"]["activationThreshold"] == "1"
    # Nobody could wake the model through a gateway that is not ready while no frontend is.
    assert container_of(objects, GATEWAY)["readinessProbe"]["httpGet"]["path"] == "/live"
    without = rendered(keda={"enabled": True})
    assert len(of_kind(without, "ScaledObject")[ENGINE]["spec"]["triggers"]) == 2
    assert container_of(without, GATEWAY)["readinessProbe"]["httpGet"]["path"] == "/ready"
    assert "TRIPTYCH_GATEWAY_MODEL_WAIT_S" not in of_kind(without, "ConfigMap")[GATEWAY]["data"]


def test_queries_name_metrics_that_exist(rendered: Any) -> None:
    page = METRICS_PAGE.read_text(encoding="utf-8")
    known = re.findall(r"`(triptych_\w+)[`{]", page)
    objects = rendered(keda={"enabled": True}, engine={"scaling": {"minReplicas": 0}})
    triggers = [trigger for found in of_kind(objects, "ScaledObject").values() for trigger in found["spec"]["triggers"]]
    names = {name for trigger in triggers for name in re.findall(r"triptych_\w+", trigger["metadata"]["query"].replace(ENGINE, ""))}
    generic = {name.replace("<service>", "frontend") for name in re.findall(r"`(triptych_<service>\w+)[`{]", page)}
    assert len(names) == 7
    assert {name.removesuffix("_total") for name in names} <= {*known, *generic}


def test_disruption_budgets(rendered: Any) -> None:
    many_nodes = {"pvc": {"accessModes": ["ReadWriteMany"]}}
    budgets = of_kind(rendered(disruptionBudget={"maxUnavailable": "25%"}, storage=many_nodes), "PodDisruptionBudget")
    assert set(budgets) == {GATEWAY, FRONTEND, ENCODER, ENGINE}
    spec = budgets[ENGINE]["spec"]
    assert spec["maxUnavailable"] == "25%"
    assert spec["selector"] == of_kind(rendered(), "Deployment")[ENGINE]["spec"]["selector"]
    assert not of_kind(rendered(disruptionBudget={"enabled": False}), "PodDisruptionBudget")
    # Pods that have to be on one node leave it together: a budget would forbid that for ever.
    assert set(of_kind(rendered(), "PodDisruptionBudget")) == {GATEWAY}


def test_pods_are_spread(rendered: Any) -> None:
    (spread,) = pod_of(rendered(), ENGINE)["topologySpreadConstraints"]
    assert (spread["topologyKey"], spread["whenUnsatisfiable"]) == ("kubernetes.io/hostname", "ScheduleAnyway")
    assert spread["labelSelector"] == of_kind(rendered(), "Deployment")[ENGINE]["spec"]["selector"]
    assert "topologySpreadConstraints" not in pod_of(rendered(topologySpread=[]), ENGINE)
