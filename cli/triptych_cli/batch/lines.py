"""Lines of the input: checked all together before anything runs, then read one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from triptych_common.batch.lines import Line, LineCheck, LineError, parse_line, read_texts

from triptych_cli.errors import CommandError

#: How many wrong lines a refusal names.
_MAX_NAMED = 10


@dataclass(frozen=True)
class Input:
    """What all lines of a file have in common."""

    custom_ids: frozenset[str]
    #: Model -> number of the first line that names it.
    models: dict[str, int]


def check_input(path: Path) -> Input:
    """Read all lines. Raises CommandError with the numbers of the lines that cannot be run."""
    check = LineCheck()
    wrong: list[str] = []
    for number, text in _texts(path):
        try:
            check.note(parse_line(number, text))
        except LineError as error:
            wrong.append(f"line {number}: {error}")
    if wrong:
        more = [f"and {len(wrong) - _MAX_NAMED} more"] if len(wrong) > _MAX_NAMED else []
        raise CommandError("\n  ".join([f"{path} cannot be run; nothing was sent:", *wrong[:_MAX_NAMED], *more]), exit_code=2)
    if not check.numbers:
        raise CommandError(f"{path} has no requests", exit_code=2)
    return Input(frozenset(check.numbers), check.models)


def read_lines(path: Path) -> Iterator[Line]:
    """The requests of a file that was checked."""
    return (parse_line(number, text) for number, text in _texts(path))


def _texts(path: Path) -> Iterator[tuple[int, bytes]]:
    """Numbers and contents of the lines that are not blank."""
    if path.exists() and not path.is_file():
        raise CommandError(f"{path} is not a regular file; the requests are read twice", exit_code=2)
    try:
        yield from read_texts(path)
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}", exit_code=2) from error
