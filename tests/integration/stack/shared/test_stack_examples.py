"""What `make serve` serves: questions of examples/ get the answers that stand there, and the programs of the pages run."""

from __future__ import annotations

import base64
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.stack import Stack
from triptych_common.settings import DEFAULT_MODEL

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]
_ROOT = Path(__file__).parents[4]
_EXAMPLES = _ROOT / "examples"
#: Pages whose programs ask the default model through REST.
_PAGES = ("quickstart", "openai-sdk", "tools", "reasoning", "media", "responses", "anthropic", "ollama")
_PROGRAMS = [
    pytest.param(program, id=f"{page}-{number}")
    for page in _PAGES
    for number, program in enumerate(re.findall(r"```python\n(.*?)```", (_ROOT / "docs" / f"{page}.md").read_text(), re.DOTALL))
    if "127.0.0.1:8000" in program
]
#: Rows of the table: picture, question, answer.
_ROWS = re.findall(r"^\| !\[.+?\]\((.+?)\) \| (.+?) \| (.+?) \|$", (_EXAMPLES / "README.md").read_text(), re.MULTILINE)


def ask(stack: Stack, name: str, question: str) -> Any:
    data = base64.b64encode((_EXAMPLES / name).read_bytes()).decode()
    url = f"data:image/{Path(name).suffix[1:]};base64,{data}"
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": question}]
    body = {"model": DEFAULT_MODEL, "temperature": 0, "messages": [{"role": "user", "content": content}]}
    return stack.http.post("/v1/chat/completions", json=body).raise_for_status().json()


def test_there_are_examples() -> None:
    assert {name for name, _, _ in _ROWS} == {path.name for path in _EXAMPLES.iterdir() if path.suffix in (".png", ".jpeg")}


@pytest.mark.parametrize(("name", "question", "right"), _ROWS)
def test_an_example_gets_its_answer(stack: Stack, name: str, question: str, right: str) -> None:
    assert ask(stack, name, question)["choices"][0]["message"]["content"] == right


def test_the_same_picture_again_is_not_encoded_again(stack: Stack) -> None:
    name, question, right = _ROWS[0]
    ask(stack, name, question)
    again = ask(stack, name, question)
    assert [item["encoder_cache"] for item in again["triptych"]["media"]] == ["hit"]
    other = ask(stack, name, "What shape is it?")
    assert other["usage"]["prompt_tokens_details"]["cached_media_tokens"] > 0
    assert (again["choices"][0]["message"]["content"], other["choices"][0]["message"]["content"]) == (right, "Circle")


@pytest.mark.parametrize("program", _PROGRAMS)
def test_a_program_of_a_page_runs(stack: Stack, program: str) -> None:
    program = program.replace("http://127.0.0.1:8000", stack.url)
    environment = os.environ | {"NO_PROXY": "127.0.0.1"}
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=_ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()
    for comment in re.findall(r"print\(.*\)  # (\w+)$", program, re.MULTILINE):
        assert comment in result.stdout.splitlines()


def test_every_page_has_programs() -> None:
    assert {str(one.id).rpartition("-")[0] for one in _PROGRAMS} == set(_PAGES)
