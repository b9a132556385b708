"""Translates the contract's field names in errors to the names that the client used."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from triptych.errors import TriptychError

#: The contract's path of a field -> the client's path. A path also applies to all fields below it; the longest match is used. An
#: empty name means that the client's JSON lacks this level: with {"options": ""}, `options.n` is the client's `n`.
FieldNames = Mapping[str, str]


def in_client_terms(error: TriptychError, names: FieldNames) -> TriptychError:
    """The error with its field named as the client named it, in the field and in the message."""
    paths = [path for path in _paths(error.field) if path in names]
    if not paths:
        return error
    renamed = (names[paths[0]] + error.field.removeprefix(paths[0])).removeprefix(".") or error.field
    # The message may also name what the field is a part of, and fields without their paths.
    said = {_leaf(path): _leaf(name) for path, name in names.items() if "_" in _leaf(path)}  # others may be words of the sentence
    said |= {path: names[path] for path in paths} | {error.field: renamed}
    message = _replace_names(error.message, said)
    return type(error)(message, field=renamed, limit=error.limit, value=error.value, retry_after_s=error.retry_after_s)


def _leaf(path: str) -> str:
    return path.rpartition(".")[2]


def _replace_names(text: str, names: Mapping[str, str]) -> str:
    """The text with whole names replaced, the longest that fits. An empty name replaces nothing."""
    alternatives = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    return re.sub(rf"(?<![\w.])(?:{alternatives})(?!\w)", lambda match: names[match[0]] or match[0], text)


def _paths(field: str) -> Iterator[str]:
    """The field and all its parents, longest first: a.b[1].c, a.b[1], a.b, a."""
    while field:
        yield field
        field = field[: max(field.rfind("."), field.rfind("["), 0)]
