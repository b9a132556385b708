"""Converts pydantic's validation errors to one readable message, with the JSON path of the invalid field."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

#: Most problems that one message names.
_MAX_PROBLEMS = 8
_MAX_SHOWN_CHARS = 60


@dataclass(frozen=True)
class Problem:
    """A validation problem of a request body."""

    message: str
    param: str | None
    code: str


def describe(errors: Sequence[Any], body: Any) -> Problem:
    """The first few of pydantic's errors as one message. `param` is the path of the first.

    Args:
        errors: the result of `ValidationError.errors()`, with `loc` starting with "body".
        body: the JSON value that was validated.
    """
    first = errors[0]
    if first["type"] == "json_invalid":
        return Problem(f"the body is not valid JSON: {first['ctx']['error']}", None, "invalid_json")
    told = errors[:_MAX_PROBLEMS]
    paths = [_path(error, body) for error in told]
    if not paths[0] and not isinstance(body, dict):
        return Problem(_body_message(body), None, "invalid_type")
    messages = [_message(error, path) for error, path in zip(told, paths, strict=True)]
    more = len(errors) - len(told)
    message = "; ".join(messages) + (f"; and {more} more" if more > 0 else "")
    return Problem(message, paths[0] or None, _code(first["type"]))


def json_path(loc: Sequence[int | str], body: Any, *, is_missing: bool = False) -> str:
    """`messages[0].role` for ("messages", 0, "role").

    Union tags, which pydantic adds to `loc`, are not part of the JSON and are left out.

    Args:
        is_missing: the last part names a field that is missing.
    """
    path, value = "", body
    for position, part in enumerate(loc):
        # Keys of logit_bias were converted to integers.
        name = str(part)
        if isinstance(value, dict) and name in (value.get("type"), value.get("role")) and _names(loc[position + 1 :], value):
            continue  # a tag that is also the name of a field, as in {"type": "text", "text": ...}
        if isinstance(value, dict) and (name in value or (is_missing and position == len(loc) - 1)):
            shown_name = name[:_MAX_SHOWN_CHARS]
            path += f".{shown_name}" if path else shown_name
            value = value.get(name)
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            path += f"[{part}]"
            value = value[part]
    return path


def _names(loc: Sequence[int | str], value: dict[str, Any]) -> bool:
    """Whether this location begins with a field of the value."""
    return bool(loc) and str(loc[0]) in value


def _path(error: Any, body: Any) -> str:
    if error["loc"][0] == "query":
        return str(error["loc"][-1])
    named = error.get("ctx", {}).get("field")
    return named or json_path(error["loc"][1:], body, is_missing=error["type"] == "missing")


def _message(error: Any, path: str) -> str:
    kind, given = error["type"], error["input"]
    if kind == "missing":
        return f"{path}: this field is required"
    if kind == "extra_forbidden":
        return f"{path}: unknown field"
    if kind.startswith("union_tag"):
        expected = error["ctx"].get("expected_tags") or error["ctx"].get("discriminator")
        tag = f"{error['ctx']['tag']!r}" if "tag" in error["ctx"] else "none"
        name = "role" if "role" in error["ctx"].get("discriminator", "") else "type"
        return f"{path}: {name} must be one of {expected}; given: {tag}"
    text = error["msg"].removeprefix("Value error, ").removeprefix("Input ")
    sentence = f"{path}: {text}" if path else text
    # Our own messages already name the value.
    return sentence if kind in ("request", "unsupported") else f"{sentence}; given: {shown(given)}"


def _body_message(body: Any) -> str:
    if body is None:
        return "the request has no body; send a JSON object"
    if isinstance(body, bytes):
        return "the body must be JSON; send it with content-type: application/json"
    return f"the body must be a JSON object; given: {shown(body)}"


def _code(kind: str) -> str:
    codes = {
        "missing": "missing_required_parameter",
        "extra_forbidden": "unknown_parameter",
        "unsupported": "unsupported_parameter",
    }
    return codes.get(kind, "invalid_value")


def shown(value: Any) -> str:
    """The value for a message: scalars as they are, but cut short; containers only by kind, because they may be deep and long."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, (str, bytes)) and len(value) > _MAX_SHOWN_CHARS:
        return repr(value[:_MAX_SHOWN_CHARS]) + "..."
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
