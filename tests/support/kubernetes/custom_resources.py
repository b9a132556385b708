"""Definitions of other projects' kinds, as their releases have them. Triptych does not bring them along."""

from __future__ import annotations

from pathlib import Path

import yaml

from support.chart import Object

#: Kinds that the chart makes, and where their projects keep the definitions.
SOURCES = {
    "Certificate": "cert-manager: deploy/crds",
    "Issuer": "cert-manager: deploy/crds",
    "ScaledObject": "KEDA: config/crd/bases",
    "ServiceMonitor": "Prometheus operator: example/prometheus-operator-crd",
    "PrometheusRule": "Prometheus operator: example/prometheus-operator-crd",
    "HTTPRoute": "Gateway API: config/crd/standard",
    "InferencePool": "Gateway API Inference Extension: config/crd/bases",
    "LeaderWorkerSet": "LeaderWorkerSet: config/crd/bases",
}


def definitions(directory: Path) -> list[Object]:
    """The CustomResourceDefinitions in the YAML files of a directory. Raises FileNotFoundError with the kinds that are missing."""
    documents = [one for path in sorted(directory.glob("*.yaml")) for one in yaml.safe_load_all(path.read_text(encoding="utf-8"))]
    found = {one["spec"]["names"]["kind"]: one for one in documents if one and one["kind"] == "CustomResourceDefinition"}
    if missing := [f"{kind} ({source})" for kind, source in SOURCES.items() if kind not in found]:
        raise FileNotFoundError(f"{directory} has no definition of {', '.join(missing)} (KUBERNETES_CRDS)")
    return [found[kind] for kind in SOURCES]
