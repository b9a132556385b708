"""certificates.yaml, networkpolicies.yaml, and what the gateway reads from Secrets."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from support.chart import DEFAULT_MODEL, FULL, Object, container_of, environment, of_kind, pod_of
from triptych_common.rpc.security.roles import Role
from triptych_common.rpc.security.tls import Tls

GATEWAY, FRONTEND, ENCODER, ENGINE = (
    f"{FULL}-gateway",
    f"{DEFAULT_MODEL}-frontend",
    f"{DEFAULT_MODEL}-encoder",
    f"{DEFAULT_MODEL}-engine",
)
ROLES = {"gateway": GATEWAY, "frontend": FRONTEND, "encoder": ENCODER, "engine": ENGINE}


def secret_volumes(objects: Any, deployment: str) -> dict[str, str]:
    return {
        volume["name"]: volume["secret"]["secretName"] for volume in pod_of(objects, deployment)["volumes"] if "secret" in volume
    }


CERT_MANAGER = {"tls": {"certManager": True}}


def test_cert_manager_makes_a_certificate_per_role(rendered: Any) -> None:
    objects = rendered(**CERT_MANAGER)
    assert not of_kind(objects, "Secret")
    certificates = of_kind(objects, "Certificate")
    assert set(certificates) == {f"{FULL}-{role}" for role in (*ROLES, "operator", "client", "ca")}
    for role, deployment in ROLES.items():
        spec = certificates[f"{FULL}-{role}"]["spec"]
        assert spec["dnsNames"] == [f"{role}.triptych.internal"]
        assert {"server auth", "client auth"} <= set(spec["usages"])
        assert spec["privateKey"]["rotationPolicy"] == "Always"
        assert spec["issuerRef"]["name"] == f"{FULL}-ca"
        assert secret_volumes(objects, deployment) == {"tls": spec["secretName"]}
        check_mount(objects, role)


def check_mount(objects: Any, role: str) -> None:
    assert environment(objects, ROLES[role])[f"TRIPTYCH_{role.upper()}_TLS_DIR"] == "/etc/triptych/tls"
    mount = {"name": "tls", "mountPath": "/etc/triptych/tls", "readOnly": True}
    assert mount in container_of(objects, ROLES[role])["volumeMounts"]


def test_helm_makes_certificates_that_the_services_take(rendered: Any, tmp_path: Path) -> None:
    objects = rendered()
    assert not {"Certificate", "Issuer"} & {one["kind"] for one in objects}
    secrets = of_kind(objects, "Secret")
    assert set(secrets) == {f"{FULL}-{role}-certificate" for role in Role}
    for role in Role:
        secret = secrets[f"{FULL}-{role}-certificate"]
        assert secret["type"] == "kubernetes.io/tls"
        assert secret["data"].keys() == {"tls.crt", "tls.key", "ca.crt"}
        folder = tmp_path / role
        folder.mkdir()
        for name, content in secret["data"].items():
            (folder / name).write_bytes(base64.b64decode(content))
        # Checked as at the start of a service, which no peer would refuse.
        assert Tls.of(folder, role) is not None
    for role, deployment in ROLES.items():
        assert secret_volumes(objects, deployment) == {"tls": f"{FULL}-{role}-certificate"}
        check_mount(objects, role)
    check_handshake(tmp_path / Role.FRONTEND, tmp_path / Role.ENGINE)


def check_handshake(caller: Path, service: Path) -> None:
    """gRPC takes the certificates on both sides."""
    authorities, *caller_files = [(caller / name).read_bytes() for name in ("ca.crt", "tls.key", "tls.crt")]
    service_files = tuple((service / name).read_bytes() for name in ("tls.key", "tls.crt"))
    server = grpc.server(ThreadPoolExecutor(1))
    credentials = grpc.ssl_server_credentials([service_files], authorities, require_client_auth=True)
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    options = [("grpc.ssl_target_name_override", Role.ENGINE.dns_name)]
    with grpc.secure_channel(f"127.0.0.1:{port}", grpc.ssl_channel_credentials(authorities, *caller_files), options) as channel:
        grpc.channel_ready_future(channel).result(30)
    server.stop(None).wait()


def test_a_key_for_one_role_serves_no_other(rendered: Any) -> None:
    secrets = of_kind(rendered(), "Secret").values()
    assert len({secret["data"]["tls.key"] for secret in secrets}) == len(Role)
    # Nobody can make a further certificate: the key of the CA is in no object.
    (authority,) = {secret["data"]["ca.crt"] for secret in secrets}
    public = x509.load_pem_x509_certificate(base64.b64decode(authority)).public_key()
    keys = [serialization.load_pem_private_key(base64.b64decode(secret["data"]["tls.key"]), None) for secret in secrets]
    assert public not in [key.public_key() for key in keys]


def test_the_release_has_a_ca_of_its_own(rendered: Any) -> None:
    issuers, ca = (
        of_kind(rendered(**CERT_MANAGER), "Issuer"),
        of_kind(rendered(**CERT_MANAGER), "Certificate")[f"{FULL}-ca"]["spec"],
    )
    assert ca["isCA"] is True
    assert ca["privateKey"]["rotationPolicy"] == "Never"  # what it signed stays valid when it is renewed
    assert ca["issuerRef"]["name"] == f"{FULL}-self-signed"
    assert issuers[f"{FULL}-self-signed"]["spec"] == {"selfSigned": {}}
    assert issuers[f"{FULL}-ca"]["spec"] == {"ca": {"secretName": ca["secretName"]}}


def test_an_issuer_of_the_cluster(rendered: Any) -> None:
    objects = rendered(
        tls={"certManager": True, "issuerRef": {"name": "vault", "kind": "ClusterIssuer"}, "duration": "24h", "renewBefore": "8h"}
    )
    assert not of_kind(objects, "Issuer")
    certificates = of_kind(objects, "Certificate")
    assert f"{FULL}-ca" not in certificates
    spec = certificates[f"{FULL}-engine"]["spec"]
    assert spec["issuerRef"] == {"group": "cert-manager.io", "kind": "ClusterIssuer", "name": "vault"}
    assert (spec["duration"], spec["renewBefore"]) == ("24h", "8h")


def test_certificates_that_exist(rendered: Any) -> None:
    objects = rendered(tls={"existingSecrets": {role: f"own-{role}" for role in ROLES}})
    assert not {"Certificate", "Issuer", "Secret"} & {one["kind"] for one in objects}
    assert secret_volumes(objects, ENGINE) == {"tls": "own-engine"}


def test_without_certificates(rendered: Any) -> None:
    objects = rendered(tls={"enabled": False})
    assert not {"Certificate", "Issuer", "Secret"} & {one["kind"] for one in objects}
    for role, deployment in ROLES.items():
        assert not secret_volumes(objects, deployment)
        assert f"TRIPTYCH_{role.upper()}_TLS_DIR" not in environment(objects, deployment)
        # Plaintext is asked for, where there are no certificates and nowhere else.
        plaintext = f"TRIPTYCH_{role.upper()}_INSECURE_GRPC"
        assert environment(objects, deployment).get(plaintext) == (None if role == "gateway" else "true")
        assert plaintext not in environment(rendered(), deployment)


def test_api_keys(rendered: Any) -> None:
    assert "TRIPTYCH_GATEWAY_API_KEYS_FILE" not in environment(rendered(), GATEWAY)
    objects = rendered(gateway={"apiKeysSecret": {"name": "keys"}})
    assert environment(objects, GATEWAY)["TRIPTYCH_GATEWAY_API_KEYS_FILE"] == "/etc/triptych/api-keys/keys.json"
    assert secret_volumes(objects, GATEWAY)["api-keys"] == "keys"
    # A mount of a single file would not be renewed.
    assert {"name": "api-keys", "mountPath": "/etc/triptych/api-keys", "readOnly": True} in container_of(objects, GATEWAY)[
        "volumeMounts"
    ]


def test_https(rendered: Any) -> None:
    objects = rendered(gateway={"httpsSecret": "host"})
    assert environment(objects, GATEWAY)["TRIPTYCH_GATEWAY_HTTPS_DIR"] == "/etc/triptych/https"
    assert secret_volumes(objects, GATEWAY)["https"] == "host"
    container = container_of(objects, GATEWAY)
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["scheme"] == "HTTPS"


def rules(objects: Any, name: str, direction: str) -> list[Object]:
    return list(of_kind(objects, "NetworkPolicy")[name]["spec"][direction])


def roles_at(rules: Sequence[Object], port: int, side: str) -> set[str] | None:
    """The roles of this release that rules let through to a port; None if they let everybody."""
    found: set[str] = set()
    for rule in rules:
        if {"port": port} not in rule["ports"]:
            continue
        if side not in rule:
            return None
        for peer in rule[side]:
            labels = peer.get("podSelector", {}).get("matchLabels", {})
            if "app.kubernetes.io/component" in labels:
                assert labels["app.kubernetes.io/instance"] == "demo"
                found.add(labels["app.kubernetes.io/component"])
    return found


def test_only_the_gateway_is_reached_from_outside(rendered: Any) -> None:
    objects = rendered()
    assert roles_at(rules(objects, GATEWAY, "ingress"), 8000, "from") is None
    assert roles_at(rules(objects, FRONTEND, "ingress"), 50054, "from") == {"gateway"}
    assert roles_at(rules(objects, ENCODER, "ingress"), 50052, "from") == {"frontend", "engine"}
    assert roles_at(rules(objects, ENGINE, "ingress"), 50053, "from") == {"frontend"}
    for name in (FRONTEND, ENCODER, ENGINE):
        assert len(rules(objects, name, "ingress")) == 2  # the port of the work, and that of the metrics
        assert of_kind(objects, "NetworkPolicy")[name]["spec"]["policyTypes"] == ["Ingress", "Egress"]


def test_services_reach_those_that_they_use(rendered: Any) -> None:
    objects = rendered()
    for name, uses in {GATEWAY: {50054}, FRONTEND: {50052, 50053}, ENGINE: {50052}, ENCODER: set[int]()}.items():
        egress = rules(objects, name, "egress")
        assert {port for port in (50052, 50053, 50054) if roles_at(egress, port, "to")} == uses
        assert egress[0]["ports"] == [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]


def test_a_model_is_closed_to_another_models_services(rendered: Any) -> None:
    for rule in rules(rendered(file="two-models"), f"{FULL}-vision-engine", "ingress"):
        for peer in rule["from"]:
            if "podSelector" in peer:
                assert peer["podSelector"]["matchLabels"]["triptych.internal/model"] == "vision"
    (to_frontends,) = [rule for rule in rules(rendered(file="two-models"), GATEWAY, "egress") if {"port": 50054} in rule["ports"]]
    assert "triptych.internal/model" not in to_frontends["to"][0]["podSelector"]["matchLabels"]


def test_who_else_gets_in(rendered: Any) -> None:
    peer = {"namespaceSelector": {"matchLabels": {"team": "a"}}}
    policy = {"gatewayFrom": [peer], "frontendFrom": [peer], "metricsFrom": []}
    objects = rendered(networkPolicy=policy)
    (gateway,), (frontend,) = rules(objects, GATEWAY, "ingress"), rules(objects, FRONTEND, "ingress")
    assert peer in gateway["from"]
    assert peer in frontend["from"]
    assert roles_at([gateway], 8000, "from") == {"test"}  # `helm test`
    (engine,) = rules(objects, ENGINE, "ingress")
    assert peer not in engine["from"]


def internet(objects: Any, name: str) -> bool:
    return any("ipBlock" in peer for rule in rules(objects, name, "egress") for peer in rule.get("to", []))


def test_who_reaches_the_internet(rendered: Any) -> None:
    # Each pod fetches its model, and frontends fetch media.
    cache = rendered(storage={"type": "cache"})
    assert {name for name in ROLES.values() if internet(cache, name)} == {FRONTEND, ENCODER, ENGINE}
    fetched = {"type": "pvc"}
    assert {name for name in ROLES.values() if internet(rendered(storage=fetched), name)} == {FRONTEND}
    assert internet(rendered(storage=fetched), f"{DEFAULT_MODEL}-fetch")
    closed = rendered(storage=fetched, networkPolicy={"allowMediaUrls": False})
    assert not [name for name in ROLES.values() if internet(closed, name)]
    for rule in rules(rendered(), FRONTEND, "egress"):
        for peer in rule.get("to", []):
            if peer.get("ipBlock", {}).get("cidr") == "0.0.0.0/0":
                assert {"10.0.0.0/8", "169.254.0.0/16"} <= set(peer["ipBlock"]["except"])


def test_the_fetching_job_is_closed(rendered: Any) -> None:
    objects = rendered(storage={"type": "pvc"})
    spec = of_kind(objects, "NetworkPolicy")[f"{DEFAULT_MODEL}-fetch"]["spec"]
    assert spec["ingress"] == []
    (job,) = of_kind(objects, "Job").values()
    assert spec["podSelector"]["matchLabels"].items() <= job["spec"]["template"]["metadata"]["labels"].items()


@pytest.mark.parametrize("name", ROLES.values())
def test_further_egress_and_no_policies(rendered: Any, name: str) -> None:
    rule = {"ports": [{"port": 4317}], "to": [{"namespaceSelector": {}}]}
    assert rule in rules(rendered(networkPolicy={"extraEgress": [rule]}), name, "egress")
    assert not of_kind(rendered(networkPolicy={"enabled": False}), "NetworkPolicy")


def test_egress_of_single_services(rendered: Any) -> None:
    rule = {"ports": [{"port": 6379}], "to": [{"namespaceSelector": {}}]}
    for role, name in ROLES.items():
        objects = rendered(networkPolicy={f"{role}To": [rule]})
        assert {other for other in ROLES.values() if rule in rules(objects, other, "egress")} == {name}


def test_production_opens_redis_to_those_that_use_it_and_shares_no_url(rendered: Any) -> None:
    objects = rendered(file="production")
    reaching = {name for name, policy in of_kind(objects, "NetworkPolicy").items() if "6379" in str(policy["spec"].get("egress"))}
    assert reaching == {GATEWAY, ENCODER}
    references = [
        (variable["valueFrom"]["secretKeyRef"]["name"], variable["valueFrom"]["secretKeyRef"]["key"])
        for deployment in ROLES.values()
        for variable in container_of(objects, deployment).get("env", [])
        if variable["name"].endswith(("_STORE", "_STORE_URL"))
    ]
    assert len(set(references)) == len(references) == 3
    of_gateway = {name for name, key in references if key != "embeddings-url"}
    assert of_gateway.isdisjoint(name for name, key in references if key == "embeddings-url"), "no pod can read another's Secret"
