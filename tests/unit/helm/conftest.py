"""Renderings that several tests look at, each made once."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tools.helm.render import CHART, Object, render, values_files

#: Renders the chart with these values, in the place of which tests give keyword arguments.
Render = Callable[..., list[Object]]


@functools.cache
def _rendered(values: str, name: str) -> list[Object]:
    return render(json.loads(values), file=values_files()[name])


@pytest.fixture(scope="session")
def rendered() -> Render:
    """The objects of the chart: `rendered(tls={"enabled": False}, file="gpu")`. Tests must not change them."""

    def with_values(file: str = "default", **values: Any) -> list[Object]:
        return _rendered(json.dumps(values), file)

    return with_values


@pytest.fixture
def chart_copy(tmp_path: Path) -> Path:
    """A copy of the chart, to which a test adds files."""
    return Path(shutil.copytree(CHART, tmp_path / "triptych"))
