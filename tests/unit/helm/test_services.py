"""deployments.yaml, services.yaml, serviceaccounts.yaml: the services' pods and names."""

from __future__ import annotations

from typing import Any

import pytest
from support.chart import DEFAULT_MODEL, FULL, container_of, environment, of_kind, pod_of

GATEWAY, FRONTEND, ENCODER, ENGINE = (
    f"{FULL}-gateway",
    f"{DEFAULT_MODEL}-frontend",
    f"{DEFAULT_MODEL}-encoder",
    f"{DEFAULT_MODEL}-engine",
)
ALL = (GATEWAY, FRONTEND, ENCODER, ENGINE)


def test_one_deployment_and_one_service_each(rendered: Any) -> None:
    assert sorted(of_kind(rendered(), "Deployment")) == sorted(ALL) == sorted(of_kind(rendered(), "Service"))


def test_each_service_knows_those_that_it_uses(rendered: Any) -> None:
    encoder, engine = f"dns:{ENCODER}.ai.svc:50052", f"dns:{ENGINE}.ai.svc:50053"
    assert environment(rendered(), GATEWAY)["TRIPTYCH_GATEWAY_FRONTEND_ADDRESSES"] == f"dns:{FRONTEND}.ai.svc:50054"
    assert environment(rendered(), FRONTEND)["TRIPTYCH_FRONTEND_ENGINE_ADDRESSES"] == engine
    assert environment(rendered(), FRONTEND)["TRIPTYCH_FRONTEND_ENCODER_ADDRESSES"] == encoder
    # The frontend names an encoder by its instance id, which the engine must know.
    assert environment(rendered(), ENGINE)["TRIPTYCH_ENGINE_ENCODER_ADDRESSES"] == encoder


def test_a_text_model_has_no_encoder(rendered: Any) -> None:
    objects = rendered(encoder={"enabled": False})
    assert not [found for found in objects if found["metadata"]["name"] == ENCODER]
    assert "TRIPTYCH_ENGINE_ENCODER_ADDRESSES" not in environment(objects, ENGINE)
    assert "TRIPTYCH_FRONTEND_ENCODER_ADDRESSES" not in environment(objects, FRONTEND)


def test_settings_become_variables(rendered: Any) -> None:
    settings = {
        "max_num_seqs": 64,
        "kv_cache_memory": "2G",
        "enable_prefix_caching": False,
        "max_step_ms": 12.5,
        "max_waiting": 40_000_000,
    }
    found = environment(rendered(settings={"log_level": "DEBUG"}, engine={"settings": settings}), ENGINE)
    assert found["TRIPTYCH_ENGINE_MAX_NUM_SEQS"] == "64"
    assert found["TRIPTYCH_ENGINE_KV_CACHE_MEMORY"] == "2G"
    assert found["TRIPTYCH_ENGINE_ENABLE_PREFIX_CACHING"] == "false"
    assert found["TRIPTYCH_ENGINE_MAX_STEP_MS"] == "12.5"
    assert found["TRIPTYCH_ENGINE_MAX_WAITING"] == "40000000"  # and not 4e+07
    assert found["TRIPTYCH_ENGINE_LOG_LEVEL"] == "DEBUG"


def test_a_services_own_setting_wins(rendered: Any) -> None:
    objects = rendered(
        settings={"log_level": "DEBUG"}, gateway={"settings": {"log_level": "ERROR", "cors_allow_origins": ["a", "b"]}}
    )
    assert environment(objects, GATEWAY)["TRIPTYCH_GATEWAY_LOG_LEVEL"] == "ERROR"
    assert environment(objects, GATEWAY)["TRIPTYCH_GATEWAY_CORS_ALLOW_ORIGINS"] == "a,b"
    assert environment(objects, ENGINE)["TRIPTYCH_ENGINE_LOG_LEVEL"] == "DEBUG"


def test_a_changed_setting_restarts_the_service_alone(rendered: Any) -> None:
    def checksum(objects: Any, name: str) -> str:
        return str(of_kind(objects, "Deployment")[name]["spec"]["template"]["metadata"]["annotations"]["checksum/settings"])

    changed = rendered(engine={"settings": {"max_num_seqs": 64}})
    assert checksum(changed, ENGINE) != checksum(rendered(), ENGINE)
    assert checksum(changed, ENCODER) == checksum(rendered(), ENCODER)


def test_settings_from_secrets(rendered: Any) -> None:
    objects = rendered(encoder={"secretSettings": {"store_url": {"name": "redis", "key": "url"}}})
    assert {"name": "TRIPTYCH_ENCODER_STORE_URL", "valueFrom": {"secretKeyRef": {"name": "redis", "key": "url"}}} in container_of(
        objects, ENCODER
    )["env"]
    assert "TRIPTYCH_ENCODER_STORE_URL" not in environment(objects, ENCODER)


@pytest.mark.parametrize(("name", "port"), [(FRONTEND, 50254), (ENCODER, 50252), (ENGINE, 50253)])
def test_grpc_probes_ask_the_health_port(rendered: Any, name: str, port: int) -> None:
    container = container_of(rendered(), name)
    # An engine or encoder is alive long before its model is loaded, and a frontend without engine is never ready.
    started = "liveness" if name == FRONTEND else "readiness"
    assert container["startupProbe"]["grpc"] == {"port": port, "service": started}
    assert container["livenessProbe"]["grpc"] == {"port": port, "service": "liveness"}
    assert container["readinessProbe"]["grpc"] == {"port": port, "service": "readiness"}
    service = name.rpartition("-")[2].upper()
    assert environment(rendered(), name)[f"TRIPTYCH_{service}_HEALTH_PORT"] == str(port)
    assert port in [entry["containerPort"] for entry in container["ports"]]


def test_the_gateways_probes_speak_http(rendered: Any) -> None:
    container = container_of(rendered(), GATEWAY)
    assert container["livenessProbe"]["httpGet"] == {"path": "/live", "port": "http", "scheme": "HTTP"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/ready", "port": "http", "scheme": "HTTP"}


def test_a_start_may_take_as_long_as_said(rendered: Any) -> None:
    objects = rendered(engine={"startupSeconds": 7200})
    probe = container_of(objects, ENGINE)["startupProbe"]
    assert probe["failureThreshold"] * probe["periodSeconds"] == 7200
    assert of_kind(objects, "Deployment")[ENGINE]["spec"]["progressDeadlineSeconds"] > 7200


@pytest.mark.parametrize("name", ALL)
def test_a_pod_may_end_its_requests(rendered: Any, name: str) -> None:
    pod = pod_of(rendered(), name)
    assert container_of(rendered(), name)["lifecycle"] == {"preStop": {"sleep": {"seconds": 5}}}
    assert pod["terminationGracePeriodSeconds"] == 5 + 30 + 15
    role = name.rpartition("-")[2]
    longer = rendered(preStopSeconds=10, settings={"shutdown_grace_s": 90.5})
    assert pod_of(longer, name)["terminationGracePeriodSeconds"] == 10 + 91 + 15
    own = rendered(settings={"shutdown_grace_s": 90}, **{role: {"settings": {"shutdown_grace_s": 300}}})
    assert pod_of(own, name)["terminationGracePeriodSeconds"] == 5 + 300 + 15


@pytest.mark.parametrize("name", ALL)
def test_pods_may_do_little(rendered: Any, name: str) -> None:
    pod = pod_of(rendered(), name)
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False  # else TRIPTYCH_ENGINE_PORT of a Service would be a setting
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 10001
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in [*pod["containers"], *pod.get("initContainers", [])]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["requests"]
    mounts = {mount["mountPath"] for mount in container_of(rendered(), name)["volumeMounts"]}
    assert mounts >= {"/tmp", "/var/cache/triptych"}  # what the image's user writes to
    limits = container_of(rendered(), name)["resources"]["limits"]
    assert {"memory", "ephemeral-storage"} <= limits.keys()


def test_images(rendered: Any) -> None:
    assert container_of(rendered(), ENGINE)["image"] == "triptych-engine:0.1.0"
    objects = rendered(
        image={"registry": "ghcr.io/me/", "tag": "2"}, engine={"image": {"tag": "cuda"}}, encoder={"image": {"name": "own"}}
    )
    assert container_of(objects, GATEWAY)["image"] == "ghcr.io/me/triptych-gateway:2"
    assert container_of(objects, ENGINE)["image"] == "ghcr.io/me/triptych-engine:cuda"
    assert container_of(objects, ENCODER)["image"] == "ghcr.io/me/own:2"
    digest = f"sha256:{'a' * 64}"
    pinned = rendered(
        image={"registry": "ghcr.io/me", "tag": "2"}, gateway={"image": {"digest": digest}}, fetch={"image": {"digest": digest}}
    )
    assert container_of(pinned, GATEWAY)["image"] == f"ghcr.io/me/triptych-gateway@{digest}"
    assert container_of(pinned, FRONTEND)["image"] == "ghcr.io/me/triptych-frontend:2"


def test_pull_secrets(rendered: Any) -> None:
    objects = rendered(image={"pullSecrets": [{"name": "registry"}]})
    assert all(pod_of(objects, name)["imagePullSecrets"] == [{"name": "registry"}] for name in ALL)
    assert "imagePullSecrets" not in pod_of(rendered(), ENGINE)


def test_where_pods_run(rendered: Any) -> None:
    where = {
        "nodeSelector": {"pool": "gpu"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {"a": "b"}},
        "priorityClassName": "high",
        "runtimeClassName": "nvidia",
    }
    objects = rendered(engine=where, storage={"pvc": {"accessModes": ["ReadWriteMany"]}})
    pod, other = (pod_of(objects, name) for name in (ENGINE, ENCODER))
    assert {key: pod[key] for key in where} == where
    assert not where.keys() & other.keys()


def test_a_type_of_strategy_goes_without_the_options_of_another(rendered: Any) -> None:
    objects = rendered(file="gpu", engine={"strategy": {"type": "Recreate"}})
    assert of_kind(objects, "Deployment")[ENGINE]["spec"]["strategy"] == {"type": "Recreate"}


def test_a_model_with_pictures_takes_one_gpu(rendered: Any) -> None:
    objects = rendered(file="gpu")
    gpus = {name: container_of(objects, name)["resources"]["limits"].get("nvidia.com/gpu", 0) for name in ALL}
    assert gpus == {GATEWAY: 0, FRONTEND: 0, ENCODER: 0, ENGINE: 1}
    assert environment(objects, ENCODER)["TRIPTYCH_ENCODER_DEVICE"] == "cpu"
    assert pod_of(objects, ENGINE)["nodeSelector"] == {"nvidia.com/gpu.present": "true"}
    assert "nodeSelector" not in pod_of(objects, ENCODER)
    # Else the encoder would have to be on the engine's node, where it is not tolerated.
    assert not [name for name in ALL if "affinity" in pod_of(objects, name)]
    # No further GPU for the time of an upgrade.
    assert of_kind(objects, "Deployment")[ENGINE]["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}


def test_the_images_for_gpus_are_those_that_one_command_pushes(rendered: Any) -> None:
    """`make images push TAG=cuda` pushes each under this tag."""
    objects = rendered(file="gpu")
    images = [container_of(objects, name)["image"] for name in ALL]
    images += [job["spec"]["template"]["spec"]["containers"][0]["image"] for job in of_kind(objects, "Job").values()]
    names = ("gateway", "frontend", "encoder", "engine", "fetch")
    assert images == [f"registry.example.com/triptych/triptych-{name}:cuda" for name in names]


def test_labels_of_pods(rendered: Any) -> None:
    labels = of_kind(rendered(engine={"podLabels": {"team": "a"}}), "Deployment")[ENGINE]["spec"]
    assert labels["template"]["metadata"]["labels"]["team"] == "a"
    assert "team" not in labels["selector"]["matchLabels"]


def test_own_volumes_and_variables(rendered: Any) -> None:
    volume, mount = {"name": "templates", "configMap": {"name": "templates"}}, {"name": "templates", "mountPath": "/templates"}
    env = {"name": "HTTPS_PROXY", "value": "http://proxy:3128"}
    objects = rendered(frontend={"extraVolumes": [volume], "extraVolumeMounts": [mount], "env": [env]})
    assert volume in pod_of(objects, FRONTEND)["volumes"]
    assert mount in container_of(objects, FRONTEND)["volumeMounts"]
    assert env in container_of(objects, FRONTEND)["env"]


def test_services_are_headless_but_for_the_gateway(rendered: Any) -> None:
    services = of_kind(rendered(), "Service")
    for name in (FRONTEND, ENCODER, ENGINE):
        assert services[name]["spec"]["clusterIP"] == "None"
        # The services judge readiness themselves. A model at zero would not be known to the gateway otherwise.
        assert services[name]["spec"]["publishNotReadyAddresses"] is True
    assert "clusterIP" not in services[GATEWAY]["spec"]
    assert services[GATEWAY]["spec"]["type"] == "ClusterIP"
    balanced = of_kind(rendered(gateway={"service": {"type": "LoadBalancer", "port": 80, "annotations": {"a": "b"}}}), "Service")[
        GATEWAY
    ]
    assert balanced["spec"]["type"] == "LoadBalancer"
    http, call = balanced["spec"]["ports"]
    assert http == {"name": "http", "port": 80, "targetPort": "http"}
    assert call == {"name": "grpc", "port": 50051, "targetPort": "grpc", "appProtocol": "kubernetes.io/h2c"}
    assert balanced["metadata"]["annotations"] == {"a": "b"}


def test_services_select_their_pods(rendered: Any) -> None:
    objects = rendered(file="two-models")
    deployments = of_kind(objects, "Deployment")
    for name, service in of_kind(objects, "Service").items():
        selected = [
            other
            for other, found in deployments.items()
            if service["spec"]["selector"].items() <= found["spec"]["template"]["metadata"]["labels"].items()
        ]
        assert selected == [name]
        assert deployments[name]["spec"]["selector"]["matchLabels"] == service["spec"]["selector"]


def test_an_upgrade_of_the_chart_keeps_selectors(rendered: Any) -> None:
    # A Deployment's selector cannot change, and a label of the pod that changes would restart it.
    for found in of_kind(rendered(), "Deployment").values():
        labels = found["spec"]["template"]["metadata"]["labels"]
        assert "helm.sh/chart" not in labels
        assert "app.kubernetes.io/version" not in labels


def test_service_accounts(rendered: Any) -> None:
    accounts = of_kind(rendered(serviceAccount={"annotations": {"a": "b"}}), "ServiceAccount")
    assert sorted(accounts) == [f"{FULL}-{role}" for role in ("encoder", "engine", "fetch", "frontend", "gateway")]
    assert all(found["automountServiceAccountToken"] is False for found in accounts.values())
    assert all(found["metadata"]["annotations"] == {"a": "b"} for found in accounts.values())
    assert pod_of(rendered(), ENGINE)["serviceAccountName"] == f"{FULL}-engine"
    without = rendered(serviceAccount={"create": False})
    assert not of_kind(without, "ServiceAccount")
    assert pod_of(without, ENGINE)["serviceAccountName"] == "default"


def test_names(rendered: Any) -> None:
    assert f"{FULL}-gateway" in of_kind(rendered(), "Service")
    assert "demo-x-gateway" in of_kind(rendered(nameOverride="x"), "Service")
    assert "y-gateway" in of_kind(rendered(fullnameOverride="y"), "Service")
