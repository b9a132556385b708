"""Writes tests/support/kubernetes/custom_resources: other projects' kinds, as these publish them, without descriptions.

    python -m tools.helm.custom_resources cert-manager.io_certificates.yaml ...

The files are those of a release; README.md of the folder says which. Versions that are no longer stored are left out.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

from tools.docs.page import ROOT

FOLDER = ROOT / "tests" / "support" / "kubernetes" / "custom_resources"


def reduced(definition: dict[str, Any]) -> dict[str, Any]:
    """A CustomResourceDefinition with all its rules and without its prose."""
    spec = definition["spec"]
    versions = [version for version in spec["versions"] if version["storage"]]
    kept = {"name": definition["metadata"]["name"], "annotations": definition["metadata"].get("annotations", {})}
    return {**definition, "metadata": kept, "spec": {**_without_prose(spec), "versions": _without_prose(versions)}}


def _without_prose(node: Any) -> Any:
    if isinstance(node, list):
        return [_without_prose(item) for item in node]
    if not isinstance(node, dict):
        return node
    # A property may have the name `description`: its value is a schema, and prose is text.
    return {key: _without_prose(value) for key, value in node.items() if key != "description" or isinstance(value, dict)}


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        definition = reduced(yaml.safe_load(path.read_text(encoding="utf-8")))
        file = FOLDER / f"{definition['metadata']['name']}.json"
        file.write_text(json.dumps(definition, separators=(",", ":")) + "\n", encoding="utf-8")
        print(file.relative_to(ROOT))
