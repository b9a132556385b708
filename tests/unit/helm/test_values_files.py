"""Every values file of the chart: linted, rendered, valid for Kubernetes, accepted by the services, and as it was."""

from __future__ import annotations

import functools
import os
from typing import Any

import kubernetes_validate.utils as kubernetes
import pytest
from support.chart import containers_of, environment, of_kind
from support.kubernetes.custom_resources import SOURCES
from triptych_cli.stack.service_flags import SERVICES, settings_class
from triptych_common.settings import ServiceSettings

from tools.helm.golden import document, golden_file
from tools.helm.render import CHART, helm, values_files

#: The oldest version that Chart.yaml allows, one between, and the newest that the package knows.
KUBERNETES = ("1.30", "1.34", "1.37")
#: Kinds that are no part of Kubernetes; test_custom_resources.py and tests/cluster are about them.
CUSTOM = set(SOURCES)


@pytest.fixture(autouse=True)
def quick_schemas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read each of the package's schemas once, not once per object."""
    monkeypatch.setattr(kubernetes, "schema_contents", _schema_contents)


@functools.cache
def _schema_contents(*args: str, _read: Any = kubernetes.schema_contents) -> Any:
    return _read(*args)


def check(objects: list[dict[str, Any]], version: str) -> set[str]:
    """Validate objects against the schemas of a version of Kubernetes; the kinds that it does not have."""
    unknown = set()
    for found in objects:
        try:
            kubernetes.validate(found, version, strict=True)
        except kubernetes.SchemaNotFoundError:
            unknown.add(found["kind"])
        except kubernetes.ValidationError as error:
            path = ".".join(map(str, error.path))
            pytest.fail(f"Kubernetes {version}: {found['kind']} {found['metadata']['name']}: {path}: {error.message}")
    return unknown


@pytest.mark.parametrize("name", values_files())
def test_lint_finds_nothing(name: str) -> None:
    file = values_files()[name]
    found = helm("lint", "--strict", "--quiet", str(CHART), *(["--values", str(file)] if file else []))
    assert not found.strip(), found


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("name", values_files())
def test_kubernetes_takes_every_object(rendered: Any, name: str, version: str) -> None:
    assert check(rendered(file=name), version) <= CUSTOM


def test_kubernetes_takes_every_switch(rendered: Any) -> None:
    peer = {"podSelector": {"matchLabels": {"a": "b"}}}
    values = {
        "storage": {"type": "image", "image": {"reference": "registry.example.com/models/x:1", "path": "weights"}},
        "models": [{"name": "a"}, {"name": "b", "storage": {"type": "pvc", "pvc": {"storageClassName": "fast"}}, "model": "org/b"}],
        "hub": {"tokenSecret": {"name": "hub"}, "endpoint": "https://hub.example.com"},
        "image": {"registry": "registry.example.com", "pullSecrets": [{"name": "pull"}]},
        "httpRoute": {"enabled": True, "parentRefs": [{"name": "outer"}], "hostnames": ["a.example.com"]},
        "ingress": {"enabled": True, "hosts": ["a.example.com"], "annotations": {"a": "b"}},
        "gateway": {
            "httpsSecret": "host",
            "service": {"annotations": {"a": "b"}},
            "secretSettings": {"api_key": {"name": "keys", "key": "one"}},
            "env": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
        },
        "frontend": {
            "strategy": {"rollingUpdate": {"maxSurge": 0}},
            "annotations": {"a": "b"},
            "nodeSelector": {"a": "b"},
            "tolerations": [{"operator": "Exists"}],
            "affinity": {"podAntiAffinity": {}},
            "priorityClassName": "high",
            "runtimeClassName": "nvidia",
            "extraVolumes": [{"name": "templates", "configMap": {"name": "templates"}}],
            "extraVolumeMounts": [{"name": "templates", "mountPath": "/templates"}],
        },
        "networkPolicy": {"gatewayFrom": [peer], "frontendFrom": [peer], "extraEgress": [{"to": [peer]}]},
        "serviceAccount": {"annotations": {"a": "b"}},
        "tests": {"apiKeySecret": {"name": "keys", "key": "one"}},
        "monitoring": {"serviceMonitor": {"https": {"serverName": "a.example.com"}}, "rules": {"configMap": True}},
    }
    # Volumes from images are newer than the oldest version that the chart allows.
    assert check(rendered(file="production", **values), "1.34") <= CUSTOM


@pytest.mark.parametrize("name", values_files())
def test_services_accept_their_environment(rendered: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in [variable for variable in os.environ if variable.startswith("TRIPTYCH_")]:
        monkeypatch.delenv(variable)
    objects = rendered(file=name)
    for deployment in of_kind(objects, "Deployment"):
        for service, container in containers_of(objects, deployment).items():
            settings = accepted(service, environment(objects, deployment, container), monkeypatch)
            assert settings.log_format == "json"


def accepted(service: str, variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> ServiceSettings:
    """The settings of a service that runs with these variables. Raises ValidationError if it refuses them."""
    assert service in SERVICES
    cls = settings_class(service)
    with monkeypatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        return cls()


@pytest.mark.parametrize("name", values_files())
def test_renders_as_the_golden_file_says(rendered: Any, name: str) -> None:
    assert document(rendered(file=name)) == golden_file(name).read_text(encoding="utf-8"), "python -m tools.helm.golden"


def test_every_object_has_the_recommended_labels(rendered: Any) -> None:
    for found in rendered(file="production"):
        labels = found["metadata"]["labels"]
        assert labels["app.kubernetes.io/name"] == "triptych"
        assert labels["app.kubernetes.io/instance"] == "demo"
        assert labels["app.kubernetes.io/managed-by"] == "Helm"
        assert labels["app.kubernetes.io/component"]
