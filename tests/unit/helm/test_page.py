"""docs/kubernetes.md: its examples are values that the chart takes."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from support.chart import of_kind

from tools.docs.page import ROOT
from tools.helm.render import HelmError, render

PAGE = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
EXAMPLES: list[dict[str, Any]] = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]


@pytest.mark.parametrize("values", EXAMPLES, ids=lambda values: ",".join(values))
def test_examples_render(values: dict[str, Any]) -> None:
    assert of_kind(render(values), "Deployment")


def test_the_messages_are_helms() -> None:
    model = {"name": "a", "model": "org/a", "engine": {"settings": {"max_num_seqs": 5000}}}
    with pytest.raises(HelmError) as refused:
        render({"models": [model], "engine": {"settings": {"max_num_seq": 1, "quantization": "int3"}}})
    (shown,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    for line in shown.splitlines():
        assert line in str(refused.value)
