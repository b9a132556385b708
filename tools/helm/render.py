"""Renders the chart, as `helm install` would send it to a cluster."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).resolve().parents[2] / "helm" / "triptych"
#: The package helm-binary puts the program beside Python.
HELM = Path(sys.executable).with_name("helm")
RELEASE, NAMESPACE = "demo", "ai"

Object = dict[str, Any]


class HelmError(Exception):
    """Helm refused the values; the message is Helm's."""


def values_files() -> dict[str, Path | None]:
    """The chart's values files by their short names. `default` is values.yaml, which Helm reads anyway."""
    others = {path.stem.removeprefix("values-"): path for path in sorted(CHART.glob("values-*.yaml"))}
    examples = {path.stem.removesuffix("-values"): path for path in sorted(CHART.glob("ci/*-values.yaml"))}
    return {"default": None, **others, **examples}


def helm(*args: str, values: Mapping[str, Any] | None = None) -> str:
    """The output of Helm.

    Args:
        values: further values, which win over those of files.

    Raises:
        HelmError: it failed.
    """
    # JSON is YAML. Standard input holds the values, so that nothing is written.
    given = ["--values", "-"] if values else []
    done = subprocess.run([str(HELM), *args, *given], input=json.dumps(values), capture_output=True, text=True, check=False)
    if done.returncode:
        raise HelmError(done.stdout + done.stderr)
    return done.stdout


def render(values: Mapping[str, Any] | None = None, *, file: Path | None = None, chart: Path = CHART) -> list[Object]:
    """All objects of a release, with these values on top of those of the file."""
    files = ["--values", str(file)] if file else []
    text = helm("template", RELEASE, str(chart), "--namespace", NAMESPACE, *files, values=values)
    return [found for found in yaml.load_all(text, Loader=yaml.CSafeLoader) if found]
