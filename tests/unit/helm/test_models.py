"""Several models by one list: each has its own services, and one gateway knows all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from support.chart import FULL, container_of, environment, of_kind, pod_of


def test_two_models(rendered: Any) -> None:
    objects = rendered(file="two-models")
    assert sorted(of_kind(objects, "Deployment")) == [
        f"{FULL}-gateway",
        f"{FULL}-minilm-engine",
        f"{FULL}-minilm-frontend",
        f"{FULL}-vision-encoder",
        f"{FULL}-vision-engine",
        f"{FULL}-vision-frontend",
        f"{FULL}-vision-prefill",
    ]
    addresses = environment(objects, f"{FULL}-gateway")["TRIPTYCH_GATEWAY_FRONTEND_ADDRESSES"]
    assert addresses == f"dns:{FULL}-vision-frontend.ai.svc:50054,dns:{FULL}-minilm-frontend.ai.svc:50054"


def test_names_that_yaml_would_not_take_for_text(rendered: Any) -> None:
    objects = rendered(models=[{"name": "123", "model": "org/a"}, {"name": "b", "model": "org/b", "servedModelName": "true"}])
    for kind in ("Deployment", "Service", "ConfigMap"):
        for name, found in of_kind(objects, kind).items():
            assert all(isinstance(label, str) for label in found["metadata"]["labels"].values()), name
    engine = of_kind(objects, "Deployment")[f"{FULL}-123-engine"]["spec"]
    assert engine["selector"]["matchLabels"]["triptych.internal/model"] == "123"
    (test,) = of_kind(objects, "Pod")[f"{FULL}-test"]["spec"]["containers"]
    assert test["args"][1::2] == ["123", "true"]


def test_names_of_others_objects_that_yaml_would_not_take_for_text(rendered: Any) -> None:
    secret = {"name": "007", "key": "1"}
    objects = rendered(
        gateway={"apiKeysSecret": secret, "httpsSecret": "12", "secretSettings": {"response_store": secret}},
        ingress={"enabled": True, "className": "1", "hosts": ["a.example"], "tlsSecret": "34"},
        hub={"tokenSecret": secret},
        storage={"type": "pvc", "pvc": {"storageClassName": "2"}},
        models=[
            {"name": "a", "model": "org/a"},
            {"name": "b", "storage": {"pvc": {"existingClaim": "56", "path": "b"}}},
        ],
        tls={"certManager": True, "issuerRef": {"name": "78", "kind": "Issuer", "group": "9"}},
        keda={"enabled": True, "prometheusAddress": "http://prometheus:9090/ #a"},
        monitoring={"serviceMonitor": {"enabled": True, "apiKeySecret": secret, "https": {"serverName": "5", "caSecret": secret}}},
        tests={"apiKeySecret": secret},
    )
    keys = {"name", "key", "group", "secretName", "claimName", "className", "ingressClassName", "storageClassName", "serverAddress"}
    found = [value for one in objects for key, value in leaves(one) if key in keys]
    assert not [value for value in found if not isinstance(value, str)]
    assert {"007", "1", "12", "34", "2", "56", "78", "9", "http://prometheus:9090/ #a"} <= {*found}
    existing = {"existingSecrets": dict.fromkeys(("gateway", "frontend", "encoder", "engine"), "007")}
    volumes = pod_of(rendered(tls=existing), f"{FULL}-gateway")["volumes"]
    assert [one["secret"]["secretName"] for one in volumes if one["name"] == "tls"] == ["007"]


def leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Texts and numbers in an object, each with the key that it stands under."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from leaves(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner, key)
    else:
        yield key, value


def test_a_models_services_know_no_others(rendered: Any) -> None:
    objects = rendered(file="two-models")
    for model, other in (("vision", "minilm"), ("minilm", "vision")):
        for role in ("frontend", "engine"):
            variables = environment(objects, f"{FULL}-{model}-{role}")
            assert not [value for value in variables.values() if f"{FULL}-{other}" in value]


def test_what_an_entry_says_of_its_model(rendered: Any) -> None:
    objects = rendered(file="two-models")
    vision = environment(objects, f"{FULL}-vision-engine")
    assert vision["TRIPTYCH_ENGINE_MODEL"] == vision["TRIPTYCH_ENGINE_SERVED_MODEL_NAME"] == "smollm2-135m-vision"
    for role in ("frontend", "encoder", "engine"):
        assert environment(objects, f"{FULL}-vision-{role}")[f"TRIPTYCH_{role.upper()}_MAX_MODEL_LEN"] == "4096"
    minilm = environment(objects, f"{FULL}-minilm-frontend")
    assert minilm["TRIPTYCH_FRONTEND_MODEL"] == "all-minilm-l6-v2"
    assert minilm["TRIPTYCH_FRONTEND_SERVED_MODEL_NAME"] == "minilm"  # the entry's name
    assert minilm["TRIPTYCH_FRONTEND_TASK"] == environment(objects, f"{FULL}-minilm-engine")["TRIPTYCH_ENGINE_TASK"] == "embed"
    assert "TRIPTYCH_FRONTEND_TASK" not in environment(objects, f"{FULL}-vision-frontend")


def test_an_entry_overrides_the_defaults_of_all_models(rendered: Any) -> None:
    common = {
        "settings": {"max_num_seqs": 8, "max_waiting": 9},
        "resources": {"requests": {"cpu": "3"}},
        "nodeSelector": {"a": "b"},
    }
    own = {"settings": {"max_num_seqs": 64}, "resources": {"requests": {"memory": "9Gi"}}, "replicas": 3}
    objects = rendered(engine=common, models=[{"name": "a", "model": "org/a", "engine": own}, {"name": "b", "model": "org/b"}])
    first, second = (environment(objects, f"{FULL}-{name}-engine") for name in "ab")
    assert (first["TRIPTYCH_ENGINE_MAX_NUM_SEQS"], second["TRIPTYCH_ENGINE_MAX_NUM_SEQS"]) == ("64", "8")
    assert first["TRIPTYCH_ENGINE_MAX_WAITING"] == second["TRIPTYCH_ENGINE_MAX_WAITING"] == "9"
    assert container_of(objects, f"{FULL}-a-engine")["resources"]["requests"] == {
        "cpu": "3",
        "memory": "9Gi",
        "ephemeral-storage": "256Mi",
    }
    assert container_of(objects, f"{FULL}-b-engine")["resources"]["requests"] == {
        "cpu": "3",
        "memory": "4Gi",
        "ephemeral-storage": "256Mi",
    }
    assert pod_of(objects, f"{FULL}-b-engine")["nodeSelector"] == {"a": "b"}
    replicas = {name: found["spec"]["replicas"] for name, found in of_kind(objects, "Deployment").items()}
    assert (replicas[f"{FULL}-a-engine"], replicas[f"{FULL}-b-engine"]) == (3, 1)


def test_a_further_model_leaves_the_others_alone(rendered: Any) -> None:
    one, two = [{"name": "a", "model": "org/a"}], [{"name": "a", "model": "org/a"}, {"name": "b", "model": "org/b"}]
    before, after = (of_kind(rendered(models=models), "Deployment") for models in (one, two))
    assert {name: after[name] for name in before if name != f"{FULL}-gateway"} == {
        name: found for name, found in before.items() if name != f"{FULL}-gateway"
    }
