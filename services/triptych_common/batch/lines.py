"""The lines of a batch: one request each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Routes whose requests have one answer.
URLS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
_KEYS = {"custom_id", "method", "url", "body"}


class LineError(ValueError):
    """A line is no request. The message continues a sentence that names the line.

    Args:
        code: OpenAI's name of the error.
        param: the field at fault; None for the whole line.
    """

    def __init__(self, message: str, code: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.param = code, param


@dataclass(frozen=True)
class Line:
    """One request."""

    number: int
    custom_id: str
    url: str
    body: dict[str, Any]

    @property
    def model(self) -> str | None:
        """The model that it names."""
        model = self.body.get("model")
        return model if isinstance(model, str) else None


class LineCheck:
    """What the lines of one file have in common."""

    def __init__(self) -> None:
        #: custom_id -> number of its line.
        self.numbers: dict[str, int] = {}
        #: Model -> number of the first line that names it.
        self.models: dict[str, int] = {}

    def note(self, line: Line) -> None:
        """Note the next line. Raises LineError if its custom_id is that of an earlier one."""
        first = self.numbers.setdefault(line.custom_id, line.number)
        if first != line.number:
            message = f"custom_id {line.custom_id[:100]!r} is that of line {first} already"
            raise LineError(message, "duplicate_custom_id", "custom_id")
        if line.model is not None:
            self.models.setdefault(line.model, line.number)


def read_texts(path: Path, max_bytes: int | None = None) -> Iterator[tuple[int, bytes]]:
    """Numbers and contents of the lines that are not blank. Raises OSError.

    Args:
        max_bytes: of a longer line only so many bytes are read, and one more; None reads every line whole.
    """
    limit = -1 if max_bytes is None else max_bytes + 1
    with path.open("rb") as file:
        number = 0
        while text := file.readline(limit):
            number += 1
            rest = text
            while max_bytes is not None and len(rest) > max_bytes and not rest.endswith(b"\n"):
                rest = file.readline(limit)
            if text.strip():
                yield number, text


def parse_line(number: int, text: bytes) -> Line:
    """The request of a line. Raises LineError."""
    try:
        line = json.loads(text)
    except ValueError as error:
        raise LineError(f"is not JSON: {error}", "invalid_json_line") from error
    except RecursionError as error:
        raise LineError("is nested too deeply", "invalid_json_line") from error
    if not isinstance(line, dict):
        raise LineError("must be an object", "invalid_json_line")
    if unknown := sorted(line.keys() - _KEYS):
        message = f"unknown field {unknown[0][:100]!r}; known are {', '.join(sorted(_KEYS))}"
        raise LineError(message, "unknown_parameter", unknown[0][:100])
    custom_id, body = line.get("custom_id"), line.get("body")
    if not isinstance(custom_id, str) or not custom_id:
        raise LineError(f"custom_id must be a string that is not empty; given: {_shown(custom_id)}", "invalid_value", "custom_id")
    if line.get("method") != "POST":
        raise LineError(f"method must be POST; given: {_shown(line.get('method'))}", "invalid_method", "method")
    if line.get("url") not in URLS:
        raise LineError(f"url must be one of {', '.join(URLS)}; given: {_shown(line.get('url'))}", "invalid_url", "url")
    if not isinstance(body, dict):
        raise LineError("body must be an object", "invalid_value", "body")
    if body.get("stream"):
        raise LineError("body.stream must be false: an answer is one line", "unsupported_parameter", "body.stream")
    return Line(number, custom_id, line["url"], body)


def _shown(value: object) -> str:
    return repr(value)[:100]
