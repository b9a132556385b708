"""docs/memory.md: its figures follow from its formula."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

_PAGE = (Path(__file__).resolve().parents[3] / "docs" / "memory.md").read_text(encoding="utf-8")
_ROWS = [
    pytest.param(*map(float, row[1:]), id=row[0])
    for row in re.findall(
        r"^\| (.+?) \| .+? billion \| .+? \| (\d+) \| (\d+) \| (\d+) \| ([\d.]+) KiB \| ([\d.]+) GiB \|$", _PAGE, re.MULTILINE
    )
]


def test_there_are_rows() -> None:
    assert len(_ROWS) == 4


@pytest.mark.parametrize(("layers", "heads", "size", "token_kib", "total_gib"), _ROWS)
def test_a_kv_cache(layers: float, heads: float, size: float, token_kib: float, total_gib: float) -> None:
    num_bytes = 2 * layers * heads * size * 2
    assert num_bytes == token_kib * 1024
    assert num_bytes * 32 * 2048 == pytest.approx(total_gib * (1 << 30), rel=0.02)
