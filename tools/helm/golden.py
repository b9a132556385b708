"""Writes tests/unit/helm/golden: what each values file of the chart renders to.

Part of `make docs`. With `--check` it only reports whether the files are up to date.

Left out are dashboards and alert rules, which are files of their own, the labels of objects, which are the same in all, and the
contents of certificates, which differ each time.
"""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

from tools.docs.page import ROOT, write_or_check
from tools.helm.render import Object, render, values_files

GOLDEN = ROOT / "tests" / "unit" / "helm" / "golden"


def document(objects: list[Object]) -> str:
    """The objects as text, sorted by kind and name, so that a difference shows what changed."""
    kept = [found for found in objects if found["metadata"]["labels"]["app.kubernetes.io/component"] not in ("dashboard", "rules")]
    kept = [{**found, "data": sorted(found["data"])} if found["kind"] == "Secret" else found for found in kept]
    kept.sort(key=lambda found: (found["kind"], found["metadata"]["name"]))
    kept = [{**found, "metadata": {key: value for key, value in found["metadata"].items() if key != "labels"}} for found in kept]
    return yaml.safe_dump_all(kept, sort_keys=False, default_flow_style=None, width=132)


def golden_file(name: str) -> Path:
    """Where the rendering of a values file is kept."""
    return GOLDEN / f"{name}.yaml"


if __name__ == "__main__":
    for name, file in values_files().items():
        write_or_check(
            document(render(file=file)), golden_file(name), __doc__, f"chart with the values file {file or 'values.yaml'}"
        )
    known = {golden_file(name) for name in values_files()}
    for stray in [path for path in GOLDEN.glob("*.yaml") if path not in known]:
        sys.exit(f"{stray.relative_to(ROOT)} belongs to no values file: remove it")
