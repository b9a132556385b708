"""The programs of examples/ whose answers mean something with the built-in models, as their first lines say to start them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.stack import Stack, running_stack
from triptych_common.settings import DEFAULT_MODEL

pytestmark = [pytest.mark.long, pytest.mark.model]
_ROOT = Path(__file__).parents[3]
_EXAMPLES = _ROOT / "examples"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    files = str(tmp_path_factory.mktemp("files"))
    with running_stack(DEFAULT_MODEL, "embed=all-minilm-l6-v2", "--gateway.files-dir", files) as stack:
        yield stack


def run(stack: Stack, program: str, *arguments: str, stdin: str = "") -> str:
    environment = {"PATH": os.environ["PATH"], "OPENAI_BASE_URL": f"{stack.url}/v1", "NO_PROXY": "127.0.0.1"}
    command = [sys.executable, str(_EXAMPLES / program), *arguments]
    result = subprocess.run(command, input=stdin, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_a_chat_about_pictures(stack: Stack) -> None:
    assert run(stack, "chat_with_pictures.py", stdin="Where is the triangle?\nWhich shape is blue?\n") == "Top\nSquare\n"


def test_structured_data(stack: Stack) -> None:
    first, _, printed = run(stack, "read_structured_data.py").partition("\n")
    assert first == "3 x lamp to Anna Berg, Oslo"
    assert json.loads(printed) == {"customer": "Anna Berg", "city": "Oslo", "item": "lamp", "quantity": 3}


def test_a_batch(stack: Stack) -> None:
    answers = dict(line.split(": ", 1) for line in run(stack, "answer_a_batch.py").splitlines())
    capitals = {"france": "Paris", "germany": "Berlin", "japan": "Tokyo"}
    assert answers.keys() == capitals.keys()
    assert all(capital in answers[country] for country, capital in capitals.items())


def test_an_answer_from_files(stack: Stack) -> None:
    answer, read_in = run(stack, "answer_from_files.py").splitlines()
    assert "60 days" in answer
    assert read_in.startswith("Read in: lost.txt")
    answer, read_in = run(stack, "answer_from_files.py", "Who repairs the espresso machine?").splitlines()
    assert "Henrik" in answer
    assert read_in == "Read in: machine.txt"


def test_the_program_of_the_page_about_embeddings(stack: Stack) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", (_ROOT / "docs" / "embeddings.md").read_text(), re.DOTALL)
    program = program.replace("http://127.0.0.1:8000", stack.url)
    environment = os.environ | {"NO_PROXY": "127.0.0.1"}
    result = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert result.stdout == "True\n1\n", result.stderr
