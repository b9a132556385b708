"""Lines of the input: checked all together before anything runs, then read one by one."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from triptych_cli.errors import CommandError

#: Routes whose requests have one answer.
URLS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
_KEYS = {"custom_id", "method", "url", "body"}
#: How many wrong lines a refusal names.
_MAX_NAMED = 10


@dataclass(frozen=True)
class Line:
    """One request."""

    number: int
    custom_id: str
    url: str
    body: dict

    @property
    def model(self) -> str | None:
        """The model that it names."""
        model = self.body.get("model")
        return model if isinstance(model, str) else None


@dataclass(frozen=True)
class Input:
    """What all lines of a file have in common."""

    custom_ids: frozenset[str]
    #: Model -> number of the first line that names it.
    models: dict[str, int]


def check_input(path: Path) -> Input:
    """Read all lines. Raises CommandError with the numbers of the lines that cannot be run."""
    first_numbers: dict[str, int] = {}
    models: dict[str, int] = {}
    wrong: list[str] = []
    for number, text in _texts(path):
        try:
            line = _parse(number, text)
            first = first_numbers.setdefault(line.custom_id, number)
            if first != number:
                raise ValueError(f"custom_id {line.custom_id!r} is that of line {first} already")
            if line.model is not None:
                models.setdefault(line.model, number)
        except ValueError as error:
            wrong.append(f"line {number}: {error}")
    if wrong:
        more = [f"and {len(wrong) - _MAX_NAMED} more"] if len(wrong) > _MAX_NAMED else []
        raise CommandError("\n  ".join([f"{path} cannot be run; nothing was sent:", *wrong[:_MAX_NAMED], *more]), exit_code=2)
    if not first_numbers:
        raise CommandError(f"{path} has no requests", exit_code=2)
    return Input(frozenset(first_numbers), models)


def read_lines(path: Path) -> Iterator[Line]:
    """The requests of a file that was checked."""
    return (_parse(number, text) for number, text in _texts(path))


def _texts(path: Path) -> Iterator[tuple[int, bytes]]:
    """Numbers and contents of the lines that are not blank."""
    try:
        with path.open("rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise CommandError(f"{path} is not a regular file; the requests are read twice", exit_code=2)
            for number, text in enumerate(file, start=1):
                if text.strip():
                    yield number, text
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}", exit_code=2) from error


def _parse(number: int, text: bytes) -> Line:
    try:
        line = json.loads(text)
    except ValueError as error:
        raise ValueError(f"is not JSON: {error}") from error
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error
    if not isinstance(line, dict):
        raise ValueError("must be an object")
    if unknown := sorted(line.keys() - _KEYS):
        raise ValueError(f"unknown field {unknown[0]!r}; known are {', '.join(sorted(_KEYS))}")
    custom_id, body = line.get("custom_id"), line.get("body")
    if not isinstance(custom_id, str) or not custom_id:
        raise ValueError(f"custom_id must be a string that is not empty; given: {custom_id!r}")
    if line.get("method") != "POST":
        raise ValueError(f"method must be POST; given: {line.get('method')!r}")
    if line.get("url") not in URLS:
        raise ValueError(f"url must be one of {', '.join(URLS)}; given: {line.get('url')!r}")
    if not isinstance(body, dict):
        raise ValueError("body must be an object")
    if body.get("stream"):
        raise ValueError("body.stream must be false: an answer is one line")
    return Line(number, custom_id, line["url"], body)
