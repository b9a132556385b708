"""`inferenceGateway`: pods that answer REST, and what a gateway needs to choose among them."""

from __future__ import annotations

from typing import Any

import pytest
from support.chart import DEFAULT_MODEL, FULL, containers_of, environment, of_kind, pod_of

from tools.helm.render import HelmError

PICKER = {"name": "epp"}
POOLED: dict[str, Any] = {"inferenceGateway": {"enabled": True, "endpointPicker": PICKER}}
NAME = f"{DEFAULT_MODEL}-engine"
#: In the order in which they start; they end in the opposite one.
ROLES = ["encoder", "engine", "frontend", "gateway"]
ROUTE = {"enabled": True, "parentRefs": [{"name": "outer"}]}


def variables(objects: Any, name: str = NAME) -> dict[str, dict[str, str]]:
    """Service -> its environment, without the common part of the names."""
    found = {role: environment(objects, name, container) for role, container in containers_of(objects, name).items()}
    return {
        role: {key.removeprefix(f"TRIPTYCH_{role.upper()}_").lower(): value for key, value in own.items()}
        for role, own in found.items()
    }


def test_each_pod_has_all_services_of_its_model(rendered: Any) -> None:
    objects = rendered(**POOLED)
    assert list(of_kind(objects, "Deployment")) == [NAME]
    assert list(containers_of(objects, NAME)) == ROLES
    found = variables(objects)
    assert found["gateway"]["frontend_addresses"] == "127.0.0.1:50054"
    assert (found["frontend"]["engine_addresses"], found["frontend"]["encoder_addresses"]) == ("127.0.0.1:50053", "127.0.0.1:50052")
    assert found["engine"]["encoder_addresses"] == "127.0.0.1:50052"
    assert {service: own["tls_dir"] for service, own in found.items()} == dict.fromkeys(ROLES, "/etc/triptych/tls")


def test_a_pods_names_are_unique_and_its_mounts_have_volumes(rendered: Any) -> None:
    values = {**POOLED, "gateway": {"apiKeysSecret": {"name": "keys"}}}
    pod = pod_of(rendered(**values), NAME)
    containers = containers_of(rendered(**values), NAME).values()
    ports = [port for container in containers for port in container["ports"]]
    for names in ([port["name"] for port in ports if "name" in port], [port["containerPort"] for port in ports]):
        assert len(names) == len(set(names))
    volumes = [volume["name"] for volume in pod["volumes"]]
    assert len(volumes) == len(set(volumes))
    mounts = {mount["name"] for container in containers for mount in container["volumeMounts"]}
    assert mounts == {*volumes}
    secrets = {volume["name"]: volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume}
    seen = {container["name"]: {mount["name"] for mount in container["volumeMounts"]} & secrets.keys() for container in containers}
    assert {role: {secrets[name] for name in names} for role, names in seen.items()} == {
        role: {f"{FULL}-{role}-certificate", *(["keys"] if role == "gateway" else [])} for role in ROLES
    }


def test_a_pod_ends_with_its_gateway_first(rendered: Any) -> None:
    pod = pod_of(rendered(**POOLED), NAME)
    assert [container["name"] for container in pod["containers"]] == ["gateway"]
    # The one that waits for the model is none.
    assert [container.get("restartPolicy") for container in pod["initContainers"]] == [None, "Always", "Always", "Always"]
    assert [container["name"] for container in pod["initContainers"][1:]] == ROLES[:-1]
    assert [container["name"] for container in containers_of(rendered(**POOLED), NAME).values() if "lifecycle" in container] == [
        "gateway"
    ]


def test_others_reach_the_gateway_and_the_metrics_by_services_of_their_own(rendered: Any) -> None:
    annotated = {"service": {"type": "LoadBalancer", "port": 80, "annotations": {"a": "b"}}}
    services = of_kind(rendered(**POOLED, gateway=annotated), "Service")
    assert services.keys() == {NAME, f"{DEFAULT_MODEL}-gateway"}
    outside, metrics = services[f"{DEFAULT_MODEL}-gateway"], services[NAME]
    assert outside["metadata"]["annotations"] == {"a": "b"}
    assert outside["spec"]["type"] == "LoadBalancer"
    assert [(port["name"], port["port"]) for port in outside["spec"]["ports"]] == [("http", 80), ("grpc", 50051)]
    assert metrics["spec"]["clusterIP"] == "None"
    assert [port["name"] for port in metrics["spec"]["ports"]] == ["metrics", "metrics-frontend", "metrics-encoder"]
    assert outside["spec"]["selector"] == metrics["spec"]["selector"]


def test_a_pod_lives_as_long_as_its_most_patient_service(rendered: Any) -> None:
    pod = pod_of(rendered(**POOLED, frontend={"settings": {"shutdown_grace_s": 100}}), NAME)
    assert pod["terminationGracePeriodSeconds"] == 5 + 100 + 15


def test_a_model_that_takes_text_has_no_encoder(rendered: Any) -> None:
    objects = rendered(**POOLED, encoder={"enabled": False})
    assert list(containers_of(objects, NAME)) == ["engine", "frontend", "gateway"]
    assert not any("encoder_addresses" in own for own in variables(objects).values())


def test_the_pool_has_the_pods_and_the_gateways_port(rendered: Any) -> None:
    objects = rendered(**POOLED)
    (pool,) = of_kind(objects, "InferencePool").values()
    labels = of_kind(objects, "Deployment")[NAME]["spec"]["template"]["metadata"]["labels"]
    assert pool["metadata"]["name"] == NAME
    assert pool["spec"]["selector"]["matchLabels"].items() <= labels.items()
    http = next(port for port in containers_of(objects, NAME)["gateway"]["ports"] if port.get("name") == "http")
    assert pool["spec"]["targetPorts"] == [{"number": http["containerPort"]}]
    assert pool["spec"]["endpointPickerRef"] == {"name": "epp", "port": {"number": 9002}, "failureMode": "FailOpen"}


def test_the_pickers_chart_may_make_the_pool(rendered: Any) -> None:
    objects = rendered(inferenceGateway={"enabled": True})
    assert not of_kind(objects, "InferencePool")
    assert list(containers_of(objects, NAME)) == ROLES


def test_several_models_have_pools_and_pickers_of_their_own(rendered: Any) -> None:
    models = [
        {"name": "a", "model": "org/a"},
        {"name": "b", "model": "org/b", "servedModelName": "B", "endpointPicker": {"name": "b-epp"}},
    ]
    objects = rendered(**POOLED, models=models, httpRoute=ROUTE)
    pools = {name: pool["spec"]["endpointPickerRef"]["name"] for name, pool in of_kind(objects, "InferencePool").items()}
    assert pools == {f"{FULL}-a-engine": "epp", f"{FULL}-b-engine": "b-epp"}
    (route,) = of_kind(objects, "HTTPRoute").values()
    found = {
        rule["matches"][0]["headers"][0]["value"]: [(backend["kind"], backend["name"]) for backend in rule["backendRefs"]]
        for rule in route["spec"]["rules"]
    }
    assert found == {"a": [("InferencePool", f"{FULL}-a-engine")], "B": [("InferencePool", f"{FULL}-b-engine")]}
    assert variables(objects, f"{FULL}-b-engine")["frontend"]["engine_addresses"] == "127.0.0.1:50053"


def test_one_model_gets_all_requests(rendered: Any) -> None:
    (route,) = of_kind(rendered(**POOLED, httpRoute=ROUTE), "HTTPRoute").values()
    (rule,) = route["spec"]["rules"]
    assert "matches" not in rule
    (backend,) = rule["backendRefs"]
    assert backend == {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": NAME}


def test_only_the_gateway_is_reached(rendered: Any) -> None:
    callers = [{"podSelector": {"matchLabels": {"app": "epp"}}}]
    objects = rendered(**POOLED, networkPolicy={"gatewayFrom": callers, "metricsFrom": [], "frontendFrom": callers})
    (rule,) = of_kind(objects, "NetworkPolicy")[NAME]["spec"]["ingress"]
    assert rule["ports"] == [{"port": 8000}, {"port": 50051}]
    assert callers[0] in rule["from"]
    # And nobody within the cluster is called.
    assert all({"port": 50053} not in rule["ports"] for rule in of_kind(objects, "NetworkPolicy")[NAME]["spec"]["egress"])


def test_a_picker_has_no_key(rendered: Any) -> None:
    assert "load_metrics_without_key" not in variables(rendered(**POOLED))["gateway"]
    keyed = rendered(**POOLED, gateway={"apiKeysSecret": {"name": "keys"}})
    assert variables(keyed)["gateway"]["load_metrics_without_key"] == "true"


def test_kv_events_reach_the_picker_and_nobody_else(rendered: Any) -> None:
    listeners = [{"podSelector": {"matchLabels": {"app": "epp"}}}]
    values = {"inferenceGateway": {"enabled": True, "kvEvents": {"enabled": True}}, "networkPolicy": {"kvEventsFrom": listeners}}
    objects = rendered(**values)
    engine = variables(objects)["engine"]
    assert (engine["kv_events"], engine["kv_events_replay"]) == ("tcp://*:5557", "tcp://*:5558")
    assert engine["kv_events_topic"] == "kv@$(POD_IP):8000@smollm2-135m-vision"
    names = [entry["name"] for entry in containers_of(objects, NAME)["engine"]["env"]]
    assert names.index("POD_IP") < names.index("TRIPTYCH_ENGINE_KV_EVENTS_TOPIC")
    rules = of_kind(objects, "NetworkPolicy")[NAME]["spec"]["ingress"]
    assert [rule for rule in rules if rule.get("from") == listeners] == [
        {"ports": [{"port": 5557}, {"port": 5558}], "from": listeners}
    ]
    others = [port for rule in rules if rule.get("from") != listeners for port in rule["ports"]]
    assert not [port for port in others if port["port"] in (5557, 5558)]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"ingress": {"enabled": True, "hosts": ["a.example.com"]}},
            "ingress.enabled: is true, and so is inferenceGateway.enabled",
        ),
        ({"inferenceGateway": {"enabled": True, "kvEvents": {"enabled": True}}}, "networkPolicy.kvEventsFrom: is empty"),
        ({"inferenceGateway": {"enabled": True}, "httpRoute": ROUTE}, "inferenceGateway.endpointPicker.name: is empty for model"),
        ({"inferenceGateway": {"enabled": True, "kvEvents": {"port": 8000}}}, "port 8000 is one of the services'"),
        ({"inferenceGateway": {"enabled": True, "kvEvents": {"port": 5558}}}, "port and replayPort are the same"),
        ({"gateway": {"httpsSecret": "host"}}, "gateway.httpsSecret: is given, and inferenceGateway.enabled is true"),
        ({role: {"extraVolumes": [{"name": "ca"}]} for role in ("gateway", "engine")}, 'two services have one with the name "ca"'),
        (
            {
                "gateway": {
                    "settings": {"response_store": "memory"},
                    "secretSettings": {"response_store": {"name": "a", "key": "b"}},
                }
            },
            "response_store is both in settings and in secretSettings",
        ),
        ({"keda": {"enabled": True}, "engine": {"scaling": {"minReplicas": 0}}}, "engine.scaling.minReplicas: is 0 for model"),
    ],
)
def test_what_does_not_go_together_is_refused(rendered: Any, values: dict[str, Any], message: str) -> None:
    with pytest.raises(HelmError, match=message):
        rendered(**{**POOLED, **values})
