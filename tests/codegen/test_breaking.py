"""`buf breaking`, as `make lint` runs it, finds what would break clients, and nothing else."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from support.codegen import BUF, ROOT


@pytest.fixture
def contracts(tmp_path: Path) -> Path:
    """A copy of the contracts, frozen as they are."""
    shutil.copy(ROOT / "buf.yaml", tmp_path)
    shutil.copytree(ROOT / "protos", tmp_path / "protos")
    assert buf(tmp_path, "build").returncode == 0
    return tmp_path


def buf(directory: Path, action: str) -> subprocess.CompletedProcess[str]:
    """Run what the Makefile says of this action."""
    (line,) = re.findall(rf"^\t\$\(BIN\)/buf ({action} .*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return subprocess.run([str(BUF), *shlex.split(line)], cwd=directory, capture_output=True, text=True, check=False)


def change(directory: Path, pattern: str, replacement: str) -> None:
    file = directory / "protos" / "triptych" / "v1" / "generation.proto"
    text, count = re.subn(pattern, replacement, file.read_text(), count=1, flags=re.MULTILINE)
    assert count == 1
    file.write_text(text)


def test_the_contracts_keep_to_themselves(contracts: Path) -> None:
    result = buf(contracts, "breaking")
    assert (result.returncode, result.stdout) == (0, "")


def test_an_added_field_breaks_nothing(contracts: Path) -> None:
    change(contracts, r"^message ChatRequest \{", "message ChatRequest {\n  optional string mood = 1000;")
    assert buf(contracts, "breaking").returncode == 0


@pytest.mark.parametrize(
    ("pattern", "replacement", "found"),
    [
        (r"^(message ChatRequest \{(?:\n.*)*?\n)  string model = 1;\n", r"\1", 'field "1" with name "model"'),
        (r"^(message ChatRequest \{(?:\n.*)*?\n)  string model = 1;\n", r"\1  bytes model = 1;\n", 'from "string" to "bytes"'),
        (r"^  rpc ListModels\(.*\n", "", '"ListModels"'),
    ],
    ids=["a field that is gone", "a field of another type", "a call that is gone"],
)
def test_what_breaks_clients_is_named(contracts: Path, pattern: str, replacement: str, found: str) -> None:
    change(contracts, pattern, replacement)
    result = buf(contracts, "breaking")
    assert result.returncode != 0
    assert "generation.proto" in result.stdout
    assert found in result.stdout
