"""What `helm install` prints at its end."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.chart import of_kind

from tools.helm.render import render

#: `helm template` does not print the notes, so that a template of the test does.
TEMPLATE = """apiVersion: v1
kind: ConfigMap
metadata: {name: notes}
data:
  notes: |-
    {{- include "triptych.notes" . | nindent 4 }}
"""


@pytest.fixture
def notes(chart_copy: Path) -> Any:
    assert (chart_copy / "templates" / "NOTES.txt").read_text().strip() == '{{ include "triptych.notes" . }}'
    (chart_copy / "templates" / "notes.yaml").write_text(TEMPLATE)
    return lambda **values: of_kind(render(values, chart=chart_copy), "ConfigMap")["notes"]["data"]["notes"]


def test_how_to_ask(notes: Any) -> None:
    text = notes()
    assert text.startswith("Triptych serves smollm2-135m-vision.\n")
    assert "port-forward service/demo-triptych-gateway 8000:8000" in text
    assert "http://127.0.0.1:8000/v1" in text
    assert "helm test --namespace ai demo" in text


def test_a_claim_without_class_is_mentioned(notes: Any) -> None:
    assert "set storage.pvc.storageClassName, or storage.type to cache" in notes()
    for storage in ({"pvc": {"storageClassName": "fast"}}, {"pvc": {"existingClaim": "mine"}}, {"type": "cache"}):
        assert "StorageClass" not in notes(storage=storage)


def test_images_without_registry_are_mentioned(notes: Any) -> None:
    assert "ask Docker Hub" in notes()
    assert "ask Docker Hub" not in notes(image={"registry": "registry.example.com/triptych"})


def test_where_the_ingress_is(notes: Any) -> None:
    text = notes(ingress={"enabled": True, "hosts": ["x.example.com"], "tlsSecret": "host"})
    assert "https://x.example.com/v1" in text
    assert "port-forward" not in text


def warnings(text: str) -> list[str]:
    return [line.removeprefix("WARNING: ") for line in text.splitlines() if line.startswith("WARNING: ")]


def test_warnings(notes: Any) -> None:
    (no_keys,) = warnings(notes())
    assert no_keys == "the gateway answers everybody. Set gateway.apiKeysSecret, or gateway.secretSettings.api_key."
    keys = {"apiKeysSecret": {"name": "keys"}}
    (no_key,) = warnings(notes(gateway=keys))
    assert "`helm test` has none: set tests.apiKeySecret" in no_key
    notes = partial(notes, tests={"apiKeySecret": {"name": "key"}})
    assert not warnings(notes(gateway=keys))
    (plaintext,) = warnings(notes(gateway=keys, tls={"enabled": False}))
    assert "tls.enabled is false" in plaintext
    stores = warnings(notes(gateway={**keys, "replicas": 2}))
    assert [line.partition(" in memory")[0].rpartition(" ")[2] for line in stores] == ["response_store", "rate_limit_store"]
    (no_key,) = warnings(notes(gateway=keys, monitoring={"serviceMonitor": {"enabled": True}}))
    assert "monitoring.serviceMonitor.apiKeySecret" in no_key
    (one_node,) = warnings(notes(gateway=keys, engine={"replicas": 2}))
    assert one_node.startswith("the claim of smollm2-135m-vision is ReadWriteOnce: all pods of the model run on one node.")
    many_nodes = {"pvc": {"accessModes": ["ReadWriteMany"]}}
    assert not warnings(notes(gateway=keys, engine={"replicas": 2}, storage=many_nodes))
    (no_metrics,) = warnings(notes(gateway=keys, keda={"enabled": True}, storage=many_nodes))
    assert "there is no ServiceMonitor" in no_metrics
    notes = partial(notes, monitoring={"serviceMonitor": {"enabled": True, "apiKeySecret": {"name": "key"}}})
    assert not warnings(notes(gateway=keys, keda={"enabled": True}, storage=many_nodes))
    scaled = {**keys, "scaling": {"maxReplicas": 2}}
    stores = warnings(notes(gateway=scaled, keda={"enabled": True}, storage=many_nodes))
    assert len(stores) == 2
