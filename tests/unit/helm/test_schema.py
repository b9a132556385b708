"""The chart refuses bad values, with the path and what is allowed."""

from __future__ import annotations

from typing import Any

import pytest
from triptych_cli.stack.service_flags import SERVICES, settings_class

from tools.helm.render import CHART, HelmError, helm, render
from tools.helm.schema import FILE, OWNED, document, schema

TWO = [{"name": "a", "model": "org/a"}, {"name": "b", "model": "org/b"}]


def test_the_file_is_up_to_date() -> None:
    assert FILE.read_text(encoding="utf-8") == document(), "python -m tools.helm.schema"


@pytest.mark.parametrize("service", SERVICES)
def test_every_setting_is_the_charts_or_the_users(service: str) -> None:
    definitions = schema()["definitions"]
    free = definitions[f"{service}Settings"]["properties"]
    secret = definitions[f"{service}SecretSettings"]["properties"]
    for name, info in settings_class(service).model_fields.items():
        assert (name in OWNED) != (name in secret), name
        assert name not in free or free[name]["description"] == " ".join((info.description or "").split())


def test_secrets_are_given_by_reference_only() -> None:
    definitions = schema()["definitions"]
    assert "api_key" not in definitions["gatewaySettings"]["properties"]
    assert "api_key" in definitions["gatewaySecretSettings"]["properties"]


def test_ranges_and_choices_are_those_of_the_settings() -> None:
    engine = schema()["definitions"]["engineSettings"]["properties"]
    assert (engine["max_num_seqs"]["minimum"], engine["max_num_seqs"]["maximum"]) == (1, 4096)
    assert engine["quantization"]["enum"] == ["none", "int8", "int4"]
    assert engine["num_threads"]["type"] == "integer"  # absent rather than null


#: What is bad -> parts of the message: the path, and what is allowed.
BAD: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "a setting out of range": (
        {"engine": {"settings": {"max_num_seqs": 5000}}},
        ("engine.settings.max_num_seqs", "less than or equal to 4096"),
    ),
    "the same for one model": (
        {"models": [{"name": "a", "model": "org/a", "engine": {"settings": {"max_num_seqs": 0}}}]},
        ("models.0.engine.settings.max_num_seqs", "greater than or equal to 1"),
    ),
    "a misspelt setting": ({"engine": {"settings": {"max_num_seq": 64}}}, ("engine.settings", '"max_num_seq"', '"max_num_seqs"')),
    "a setting that the chart sets": ({"engine": {"settings": {"port": 1}}}, ("engine.settings", '"port"', '"max_num_seqs"')),
    "a setting of another service": (
        {"encoder": {"settings": {"playground": True}}},
        ("encoder.settings", '"playground"', '"cache_memory"'),
    ),
    "a secret in plain sight": ({"gateway": {"settings": {"api_key": "x"}}}, ("gateway.settings", '"api_key"')),
    "no choice of a setting": (
        {"engine": {"settings": {"quantization": "int3"}}},
        ("engine.settings.quantization", '"none", "int8", "int4"'),
    ),
    "no size": ({"engine": {"settings": {"kv_cache_memory": "much"}}}, ("engine.settings.kv_cache_memory", "[KMGTkmgt]")),
    "a text for a number": (
        {"engine": {"settings": {"max_waiting": "many"}}},
        ("engine.settings.max_waiting", "Expected: integer, given: string"),
    ),
    "a misspelt value": ({"gateway": {"replica": 2}}, ("gateway", '"replica"', '"replicas"')),
    "a misspelt value at the top": ({"gatway": {}}, ('"gatway"', '"gateway"')),
    "no model": ({"models": []}, ("models", "at least 1 items")),
    "a model without name": ({"models": [{"model": "org/a"}]}, ("models.0", "name is required")),
    "a name that Kubernetes refuses": ({"models": [{"name": "Qwen_3", "model": "org/a"}]}, ("models.0.name", "[a-z0-9]")),
    "a path as model": ({"models": [{"name": "a", "model": "/models/a"}]}, ("models.0.model", "[A-Za-z0-9]")),
    "no such task": (
        {"models": [{"name": "a", "model": "org/a", "task": "chat"}]},
        ("models.0.task", '"auto", "generate", "embed"'),
    ),
    "no such storage": ({"storage": {"type": "s3"}}, ("storage.type", '"cache", "pvc", "image"')),
    "a gateway that nobody could wake": (
        {"gateway": {"scaling": {"minReplicas": 0}}},
        ("gateway.scaling.minReplicas", "greater than or equal to 1"),
    ),
    "a memory limit that Kubernetes refuses": (
        {"engine": {"resources": {"limits": {"memory": "8GB"}}}},
        ("engine.resources.limits.memory", "[KMGTPE]i"),
    ),
    "the same for what fetches models": (
        {"fetch": {"resources": {"requests": {"cpu": "two"}}}},
        ("fetch.resources.requests.cpu", "[numk]"),
    ),
    "a misspelt part of the resources": (
        {"engine": {"resources": {"limit": {"memory": "8Gi"}}}},
        ("engine.resources", '"limit"', '"limits"'),
    ),
    "a claim's size that Kubernetes refuses": ({"storage": {"pvc": {"size": "50K"}}}, ("storage.pvc.size", "[KMGTPE]i")),
    "two ports of the gateway that are one": (
        {"gateway": {"service": {"grpcPort": 8000}}},
        ("gateway.service", "port and grpcPort are both 8000"),
    ),
    "no digest": ({"engine": {"image": {"digest": "sha256:1"}}}, ("engine.image.digest", "[0-9a-f]")),
    "an issuer without cert-manager": (
        {"tls": {"issuerRef": {"name": "a", "kind": "Issuer"}}},
        ("tls.issuerRef", "tls.certManager is false"),
    ),
    "a ratio above 1": ({"engine": {"scaling": {"kvCacheUsage": 80}}}, ("engine.scaling.kvCacheUsage", "less than or equal to 1")),
    "a secret's reference without key": (
        {"encoder": {"secretSettings": {"store_url": {"name": "redis"}}}},
        ("encoder.secretSettings.store_url", "key is required"),
    ),
    # What a schema cannot say.
    "two models of one name": ({"models": [TWO[0], TWO[0]]}, ("models[1].name", '"a"', "each needs its own")),
    "two models served under one name": (
        {"models": [TWO[0], {**TWO[1], "servedModelName": "a"}]},
        ("models[1].servedModelName", '"a"'),
    ),
    "neither a model nor a directory": ({"models": [{"name": "a"}]}, ("models[0].model", "is missing", "hub id")),
    "a model and a directory": (
        {"models": [TWO[0]], "storage": {"type": "pvc", "pvc": {"path": "a"}}},
        ("models[0].model", '"org/a"', "leave one out"),
    ),
    "an image volume without image": (
        {"models": [{"name": "a"}], "storage": {"type": "image"}},
        ("models[0].storage.image.reference", "is empty"),
    ),
    "more replicas at least than at most": (
        {"engine": {"scaling": {"minReplicas": 5}}},
        ("engine of model", "scaling.minReplicas is 5, more than maxReplicas, 4"),
    ),
    "a setting given twice": (
        {"encoder": {"settings": {"store_url": "redis://a"}, "secretSettings": {"store_url": {"name": "a", "key": "b"}}}},
        ("encoder of model", "store_url is both in settings and in secretSettings"),
    ),
    "a certificate missing": (
        {"tls": {"existingSecrets": {"gateway": "a", "frontend": "b", "encoder": "c"}}},
        ("tls.existingSecrets.engine", "is missing"),
    ),
    "certificates that are never renewed": (
        {"tls": {"certManager": True, "duration": "720h"}},
        ("tls.duration", "is 720h", "longer than tls.renewBefore, 720h"),
    ),
    # cert-manager wants 5 minutes at least.
    "certificates that are renewed too late": ({"tls": {"renewBefore": "0h"}}, ("tls.renewBefore", "[1-9]")),
    "a comma in a model's name": (
        {"models": [{**TWO[0], "servedModelName": "a,b"}]},
        ("models.0.servedModelName", "^[^,]+$"),
    ),
    "an ingress without host": ({"ingress": {"enabled": True}}, ("ingress.hosts", "is empty")),
    "a route without gateway": ({"httpRoute": {"enabled": True}}, ("httpRoute.parentRefs", "is empty")),
    "a name that begins with a digit": ({"fullnameOverride": "7-demo"}, ("fullnameOverride", '"7-demo-gateway"', "a letter first")),
    "a name with a dot": ({"fullnameOverride": "demo.v2"}, ("fullnameOverride", '"demo.v2-gateway"', "dashes")),
    "a name that is too long": ({"fullnameOverride": "x" * 60}, ("models:", "at most 63")),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_values_are_refused(what: str) -> None:
    values, parts = BAD[what]
    with pytest.raises(HelmError) as refused:
        render(values)
    message = str(refused.value)
    missing = [part for part in parts if part not in message]
    assert not missing, f"{missing} not in: {message}"
    assert len(message) < 3000


@pytest.mark.parametrize("quantity", [2, 0.5, "2", "500m", "1.5", ".5", "8G", "8Gi", "1e9", "129e6", "0"])
def test_quantities_of_kubernetes_are_taken(quantity: Any) -> None:
    resources = {"limits": {"memory": quantity, "nvidia.com/gpu": 1}}
    render({"engine": {"resources": resources}, "fetch": {"resources": resources}})


def test_lint_refuses_them_too() -> None:
    with pytest.raises(HelmError, match=r"engine\.settings\.max_num_seqs: Must be less than or equal to 4096"):
        helm("lint", str(CHART), values={"engine": {"settings": {"max_num_seqs": 5000}}})
