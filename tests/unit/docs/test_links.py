"""The link checker finds what is broken, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from docs.links import anchors, problems

_TARGET = """# The Page

## What a *step* costs, in `ms`
## Twice
## Twice
<a id="by-hand"></a>

```sh
# no heading
```
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "target.md").write_text(_TARGET)
    (tmp_path / "services").mkdir()
    (tmp_path / "services" / "core.py").write_text("class Core:\n    def add(self) -> None: ...\n")
    return tmp_path


def found(root: Path, text: str) -> list[str]:
    (root / "docs" / "page.md").write_text(text)
    return [str(problem) for problem in problems(root, [Path("docs/page.md")])]


@pytest.mark.parametrize(
    "text",
    [
        "[a](target.md) and [b](target.md#the-page) and [c](#here)\n\n# Here",
        "[a](target.md#what-a-step-costs-in-ms), [b](target.md#twice), [c](target.md#twice-1), [d](target.md#by-hand)",
        "[a][one]\n\n[one]: target.md#twice",
        "[![picture](target.md)](target.md)",
        '<img src="target.md"> <a href="target.md#twice">there</a>',
        "[web](https://example.org/nothing#here) <mailto:a@example.org>",
        "```md\n[in a fence](nowhere.md)\n```\n`[in code](nowhere.md)`",
        "`services/core.py` `services/*.py` `services/{core,core}.py` `services/`",
        "`services/core.py`: `Core.add`, `Core`",
        "[`core.py`](../services/core.py): `Core.add`",
    ],
)
def test_good_references_pass(root: Path, text: str) -> None:
    assert found(root, text) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[a](nowhere.md)", "docs/page.md:1: nowhere.md: no such file"),
        ("\n\n![a](figures/none.svg)", "docs/page.md:3: figures/none.svg: no such file"),
        ("[a](target.md#three-times)", "docs/page.md:1: target.md#three-times: no heading of that name"),
        ("[a](target.md#twice-2)", "docs/page.md:1: target.md#twice-2: no heading of that name"),
        ("[a](target.md#no-heading)", "docs/page.md:1: target.md#no-heading: no heading of that name"),
        ("[a](#nowhere)", "docs/page.md:1: #nowhere: no heading of that name"),
        ("[a][one]\n\n[one]: nowhere.md", "docs/page.md:3: nowhere.md: no such file"),
        ('<img src="none.svg">', "docs/page.md:1: none.svg: no such file"),
        ("[a](/docs/target.md)", "docs/page.md:1: /docs/target.md: an absolute path works on no machine but one"),
        ("[a](../../outside.md)", "docs/page.md:1: ../../outside.md: no such file"),
        ("`services/gone.py`", "docs/page.md:1: `services/gone.py`: no such file"),
        ("| `` | a |\n|---|---|\n| `services/gone.py` | b |", "docs/page.md:3: `services/gone.py`: no such file"),
        ("`services/{core,gone}.py`", "docs/page.md:1: `services/gone.py`: no such file"),
        ("`services/core.py`: `Core.add`, `Core.remove`", "docs/page.md:1: `Core.remove` is not in services/core.py"),
        ("[`core.py`](../services/core.py): `Cora`", "docs/page.md:1: `Cora` is not in ../services/core.py"),
    ],
)
def test_broken_references_are_named(root: Path, text: str, message: str) -> None:
    assert found(root, text) == [message]


def test_anchors_are_githubs(root: Path) -> None:
    assert anchors(root / "docs" / "target.md") == {"the-page", "what-a-step-costs-in-ms", "twice", "twice-1", "by-hand"}
