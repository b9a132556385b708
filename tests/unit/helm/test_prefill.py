"""Engines for prompts beside those that decode: `prefill`."""

from __future__ import annotations

from typing import Any

import pytest
from support.chart import DEFAULT_MODEL, Object, container_of, environment, of_kind, pod_of
from triptych_engine.settings import EngineSettings

from tools.helm.render import HelmError, render

ENGINE, PREFILL, FRONTEND, ENCODER = (f"{DEFAULT_MODEL}-{name}" for name in ("engine", "prefill", "frontend", "encoder"))
ENABLED = {"enabled": True, "replicas": 3}
NODES = {"nodes": 2, "nodeKeySecret": {"name": "secret"}, "settings": {"tensor_parallel_size": 2}}


def settings_of(objects: list[Object], deployment: str, monkeypatch: pytest.MonkeyPatch) -> EngineSettings:
    with monkeypatch.context() as patch:
        for name, value in environment(objects, deployment).items():
            patch.setenv(name, value)
        return EngineSettings()


def test_each_has_its_role_and_who_decodes_knows_the_others(rendered: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = rendered(prefill=ENABLED, engine={"replicas": 2})
    prefill, decode = (settings_of(objects, name, monkeypatch) for name in (PREFILL, ENGINE))
    assert (prefill.kv_role, decode.kv_role) == ("prefill", "decode")
    assert not prefill.kv_peer_addresses
    assert [str(one) for one in decode.kv_peer_addresses] == [f"dns:{PREFILL}.ai.svc:50053"]
    targets = environment(objects, FRONTEND)["TRIPTYCH_FRONTEND_ENGINE_ADDRESSES"].split(",")
    assert targets == [f"dns:{ENGINE}.ai.svc:50053", f"dns:{PREFILL}.ai.svc:50053"]
    deployments = of_kind(objects, "Deployment")
    assert [deployments[name]["spec"]["replicas"] for name in (ENGINE, PREFILL)] == [2, 3]


def test_they_are_as_the_engines_but_for_what_is_said(rendered: Any) -> None:
    model = {"name": "smollm2-135m-vision", "model": "smollm2-135m-vision", "engine": {"settings": {"max_num_seqs": 8}}}
    model |= {"prefill": {"nodeSelector": {"pool": "compute"}, "settings": {"max_num_batched_tokens": 4096}}}
    objects = rendered(prefill=ENABLED, engine={"settings": {"kv_cache_memory": "2G"}}, models=[model])
    own, others = environment(objects, PREFILL), environment(objects, ENGINE)
    assert {name for name in own.keys() | others.keys() if own.get(name) != others.get(name)} == {
        "TRIPTYCH_ENGINE_KV_ROLE",
        "TRIPTYCH_ENGINE_KV_PEER_ADDRESSES",
        "TRIPTYCH_ENGINE_MAX_NUM_BATCHED_TOKENS",
    }
    assert (own["TRIPTYCH_ENGINE_MAX_NUM_SEQS"], own["TRIPTYCH_ENGINE_KV_CACHE_MEMORY"]) == ("8", "2G")
    assert pod_of(objects, PREFILL)["nodeSelector"] == {"pool": "compute"}
    assert "nodeSelector" not in pod_of(objects, ENGINE)
    source = {"envFrom": None}
    assert {**container_of(objects, PREFILL), **source} == {**container_of(objects, ENGINE), **source}


def test_no_object_selects_pods_of_both(rendered: Any) -> None:
    objects = rendered(prefill=ENABLED, storage={"pvc": {"accessModes": ["ReadWriteMany"]}})
    pods = {name: found["spec"]["template"]["metadata"]["labels"] for name, found in of_kind(objects, "Deployment").items()}
    for kind in ("Service", "Deployment", "PodDisruptionBudget"):
        for name in (ENGINE, PREFILL):
            selector = of_kind(objects, kind)[name]["spec"]["selector"]
            selector = selector.get("matchLabels", selector)
            assert [pod for pod, labels in pods.items() if selector.items() <= labels.items()] == [name], kind


def test_who_reaches_them(rendered: Any) -> None:
    policies = of_kind(rendered(prefill=ENABLED, networkPolicy={"enabled": True}), "NetworkPolicy")

    def callers(name: str, port: int) -> set[str]:
        (rule,) = (one for one in policies[name]["spec"]["ingress"] if {"port": port} in one["ports"])
        return {one["podSelector"]["matchLabels"]["app.kubernetes.io/component"] for one in rule["from"]}

    def called(name: str) -> set[str]:
        peers = [peer for rule in policies[name]["spec"]["egress"] for peer in rule.get("to", [])]
        return {one["podSelector"]["matchLabels"]["app.kubernetes.io/component"] for one in peers if "podSelector" in one}

    assert callers(PREFILL, 50053) == {"frontend", "engine"}
    assert callers(ENGINE, 50053) == {"frontend"}
    assert callers(ENCODER, 50052) == {"frontend", "engine", "prefill"}
    assert called(FRONTEND) == {"encoder", "engine", "prefill"}
    assert called(ENGINE) == {"encoder", "prefill"}
    assert called(PREFILL) == {"encoder"}


def test_a_model_is_fetched_once_and_wakes_with_all_its_engines(rendered: Any) -> None:
    objects = rendered(prefill={"enabled": True}, engine={"scaling": {"minReplicas": 0}}, keda={"enabled": True})
    assert len(of_kind(objects, "Job")) == 1
    scaled = of_kind(objects, "ScaledObject")
    (wakes,) = (
        one["metadata"]["query"] for one in scaled[PREFILL]["spec"]["triggers"] if "calls_total" in one["metadata"]["query"]
    )
    assert wakes in [one["metadata"]["query"] for one in scaled[ENGINE]["spec"]["triggers"]]
    assert f'service="{FRONTEND}"' in wakes


def test_only_engines_that_decode_keep_a_model_ready(rendered: Any) -> None:
    """Without any engine for prompts, the others compute them."""
    objects = rendered(prefill={"enabled": True, "scaling": {"minReplicas": 0}}, keda={"enabled": True})
    assert "TRIPTYCH_GATEWAY_EXPECTED_MODELS" not in environment(objects, "demo-triptych-gateway")
    assert of_kind(objects, "ScaledObject")[PREFILL]["spec"]["minReplicaCount"] == 0
    assert of_kind(objects, "ScaledObject")[ENGINE]["spec"]["minReplicaCount"] == 1


def test_values_of_nothing_are_values(rendered: Any) -> None:
    prefill = {"enabled": True, "replicas": 0, "settings": {"prompt_lookup": False}}
    objects = rendered(prefill=prefill, engine={"replicas": 2, "settings": {"prompt_lookup": True}})
    assert of_kind(objects, "Deployment")[PREFILL]["spec"]["replicas"] == 0
    assert environment(objects, PREFILL)["TRIPTYCH_ENGINE_PROMPT_LOOKUP"] == "false"
    assert environment(objects, ENGINE)["TRIPTYCH_ENGINE_PROMPT_LOOKUP"] == "true"


def test_there_are_none_by_default(rendered: Any) -> None:
    objects = rendered()
    assert PREFILL not in of_kind(objects, "Deployment")
    assert not [name for name in environment(objects, ENGINE) if "_KV_" in name]


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"engine": NODES, "storage": {"pvc": {"accessModes": ["ReadWriteMany"]}}}, "nodes is 2, and prefill.enabled is true"),
        (
            {"inferenceGateway": {"enabled": True}},
            'prefill.enabled: is true for model "smollm2-135m-vision", and so is inferenceGateway',
        ),
        ({"prefill": ENABLED | {"nodes": 2}}, "nodes"),
        ({"engine": {"settings": {"kv_role": "decode"}}}, "kv_role"),
        ({"models": [{"name": "a", "model": "org/a", "task": "embed"}]}, "task is embed; it is for models that generate text"),
        ({"engine": {"settings": {"enable_prefix_caching": False}}}, "settings.enable_prefix_caching is false"),
        (
            {"prefill": ENABLED | {"scaling": {"minReplicas": 9}}},
            'prefill of model "smollm2-135m-vision": scaling.minReplicas is 9',
        ),
    ],
    ids=["nodes", "inference-gateway", "no-nodes-here", "a-role-of-its-own", "embeds", "no-prefix-cache", "scaling"],
)
def test_what_is_refused(values: dict[str, Any], why: str) -> None:
    with pytest.raises(HelmError, match=why):
        render({"prefill": ENABLED, **values})
