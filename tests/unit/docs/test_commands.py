"""Commands `triptych ...` in the pages have arguments, flags and values that the command line takes."""

from __future__ import annotations

import itertools
import re
import shlex
from pathlib import Path

import pytest
import typer
from docs.links import markdown_files
from triptych_cli.main import app
from triptych_cli.stack.service_flags import SERVICES, parse_settings

_ROOT = Path(__file__).resolve().parents[3]
#: Blocks of shell, and indented ones.
_BLOCK = re.compile(r"^```sh\n(.*?)^```|^((?: {4}\S.*\n)+)", re.MULTILINE | re.DOTALL)
#: What ends a command in a line of shell.
_END = {"|", ">", "&", "&&", ";", ")", "<"}


def commands(text: str) -> list[list[str]]:
    """The arguments of each `triptych` in a page's blocks. One with brackets is a form and no command."""
    found = []
    for block in _BLOCK.finditer(text):
        shell = (block[1] or block[2]).replace("\\\n", " ")
        for line in re.findall(r"^ *(?:sudo )?(?:\.venv/bin/)?triptych ([^[\n]*)$", shell, re.MULTILINE):
            lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>()")
            lexer.whitespace_split = True
            found.append(list(itertools.takewhile(lambda word: word not in _END, lexer)))
    return found


_COMMANDS = [
    pytest.param(arguments, id=f"{page}: {' '.join(arguments)}")
    for page in markdown_files(_ROOT)
    if page.name != "CHANGELOG.md"
    for arguments in commands((_ROOT / page).read_text(encoding="utf-8"))
]


def parse(arguments: list[str]) -> None:
    """Parse a command line without running it. Raises what the command line would show."""
    command, left = typer.main.get_command(app), list(arguments)
    while isinstance(command, typer.core.TyperGroup):
        command = command.commands[left.pop(0)]
    context = command.make_context(arguments[0], left)
    service = arguments[1] if arguments[0] == "worker" else arguments[0]
    if service in SERVICES:
        parse_settings(service, context.args)
    for name in SERVICES if arguments[0] == "serve" else ():
        tls_dir = ["--tls-dir", f"certs/{name}"] if context.params["certs"] else []  # as `triptych serve` gives it
        parse_settings(name, [*context.obj[name], *tls_dir])


@pytest.mark.parametrize("arguments", _COMMANDS)
def test_a_command_of_a_page_is_one(arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "certs").mkdir()  # `triptych serve` looks for it
    monkeypatch.chdir(tmp_path)
    parse(arguments)


def test_there_are_commands() -> None:
    assert len(_COMMANDS) > 40
    assert commands("```sh\ntriptych serve A --engines 2 | cat  # two\nsudo triptych ps >file\n```\n") == [
        ["serve", "A", "--engines", "2"],
        ["ps"],
    ]
    assert commands("Text.\n\n    triptych serve FILE\n") == [["serve", "FILE"]]


@pytest.mark.parametrize(
    "line", ["serve --engine.max-num-seq 1", "serve --engins 2", "engine --max-num-seqs 0", "keys made", "top --twice"]
)
def test_what_is_no_command_is_found(line: str) -> None:
    with pytest.raises(Exception, match=r"max-num-seq|engins|max_num_seqs|made|twice"):
        parse(line.split())
