"""Checks the input of a batch before any of it is answered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from triptych_common.batch.lines import Line, LineCheck, LineError, parse_line, read_texts

from triptych_gateway.apis.batches.schema import BatchError
from triptych_gateway.apis.json_body import too_many_parts

#: Requests of one batch, as in OpenAI's API.
MAX_LINES = 50_000
#: Length of a custom_id: all of them are kept in memory.
MAX_ID_CHARS = 512
#: Errors that a batch names.
MAX_ERRORS = 100


@dataclass
class Checked:
    """What the lines of a batch are."""

    num_lines: int = 0
    #: Model -> number of the first line that names it.
    models: dict[str, int] = field(default_factory=dict)
    errors: list[BatchError] = field(default_factory=list)
    num_errors: int = 0

    def refuse(self, code: str, message: str, param: str | None = None, line: int | None = None) -> None:
        """Note an error."""
        self.num_errors += 1
        if len(self.errors) < MAX_ERRORS:
            # Names in the input may have lone surrogates, which no JSON in UTF-8 can hold.
            message, param = _printable(message), None if param is None else _printable(param)
            self.errors.append(BatchError(code=code, message=message, param=param, line=line))

    def all_errors(self) -> Sequence[BatchError]:
        """The first errors, in the order of the lines, and how many there are beside them."""
        told = sorted(self.errors, key=lambda error: error.line or 0)
        if (more := self.num_errors - len(self.errors)) > 0:
            told.append(BatchError(code="further_errors", message=f"and {more} more errors", param=None, line=None))
        return told


def check_lines(path: Path, endpoint: str, max_line_bytes: int) -> Checked:
    """Read all lines of a batch. It takes as long as the file is large: not for the event loop. Raises OSError."""
    checked, check = Checked(), LineCheck()
    for number, text in read_texts(path, max_line_bytes):
        checked.num_lines += 1
        if checked.num_lines > MAX_LINES:
            checked.refuse("too_many_requests", f"a batch has at most {MAX_LINES} requests", line=number)
            break
        try:
            if len(text) > max_line_bytes:
                raise LineError(f"has more than {max_line_bytes} bytes", "line_too_long")
            # Nothing else runs while a line is parsed. As a body it would be refused, too.
            if problem := too_many_parts(text):
                raise LineError(f"has {problem}", "line_too_long")
            line = parse_line(number, text)
            _check(line, endpoint)
            check.note(line)
        except LineError as error:
            checked.refuse(error.code, f"line {number}: {error}", error.param, number)
    if not checked.num_lines:
        checked.refuse("empty_file", "the input file has no requests")
    checked.models = check.models
    return checked


def _check(line: Line, endpoint: str) -> None:
    if len(line.custom_id) > MAX_ID_CHARS:
        raise LineError(f"custom_id has more than {MAX_ID_CHARS} characters", "invalid_value", "custom_id")
    if line.url != endpoint:
        raise LineError(f"url must be the endpoint of the batch, {endpoint}; given: {line.url}", "invalid_url", "url")
    if not line.model:
        raise LineError("body.model must name a model", "missing_required_parameter", "body.model")
    if line.body.get("background"):
        raise LineError("body.background must be false: the batch waits for the answer", "unsupported_parameter", "body.background")


def _printable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


def checked_lines(path: Path) -> Iterator[Line]:
    """The requests of a file that was checked, one by one. Raises OSError."""
    return (parse_line(number, text) for number, text in read_texts(path))
