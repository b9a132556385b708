"""docs/troubleshooting.md: what it quotes, the code says. `tests/integration/stack/test_symptoms.py` provokes its symptoms."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[3]
_PAGE = (_ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
_QUOTES = re.findall("“([^”]+)”", _PAGE.split("\n## A service does not start\n")[1])
#: Between the parts of a text, where a program puts a value.
_VALUE = "\0"


def _text(node: ast.expr) -> str:
    """A string of the code, with a mark for each value."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    assert isinstance(node, ast.JoinedStr)
    return "".join(_text(part) if isinstance(part, ast.Constant) else _VALUE for part in node.values)


@cache
def texts() -> list[str]:
    """The strings of services, gateway and command line. Format marks of `logging` are values."""
    found = []
    for folder in ("services", "gateway", "cli"):
        for file in sorted((_ROOT / folder).rglob("*.py")):
            nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
            found += [_text(node) for node in nodes if isinstance(node, (ast.Constant, ast.JoinedStr))]
    return [re.sub("%[ds]", _VALUE, text) for text in found if " " in text]


def is_said(quote: str) -> bool:
    """Whether one text of the code has the parts of a quote, in their order."""
    parts = [part for part in quote.strip("…").split("…") if part.strip(" :;().,")]
    pattern = ".*".join(re.escape(part.strip()) for part in parts)
    return any(re.search(pattern, text, re.DOTALL) for text in texts())


def test_there_are_quotes() -> None:
    assert len(_QUOTES) > 30


@pytest.mark.parametrize("quote", _QUOTES)
def test_the_code_says_what_the_page_quotes(quote: str) -> None:
    assert is_said(quote)


def test_other_words_are_not_found() -> None:
    assert not is_said("max_model_len … does not fit: the KV cache keeps … tokens")
