"""Translates the contract's field names in errors to the names that the client used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from triptych_common.errors import TriptychError

#: The contract's path of a field -> the client's path. A path also applies to all fields below it; the longest match is used. An
#: empty name means that the client's JSON lacks this level: with {"options": ""}, `options.n` is the client's `n`.
FieldNames = Mapping[str, str]


def in_client_terms(error: TriptychError, names: FieldNames) -> TriptychError:
    """The error with the client's name of its field, in the field and in the message."""
    paths = [path for path in _paths(error.field) if path in names]
    if not paths:
        return error
    renamed = (names[paths[0]] + error.field.removeprefix(paths[0])).removeprefix(".")
    message = error.message.replace(error.field, renamed)
    # The message may also name a parent of the field.
    for path in paths:
        if names[path]:
            message = message.replace(path, names[path])
    return type(error)(message, field=renamed, limit=error.limit, value=error.value, retry_after_s=error.retry_after_s)


def _paths(field: str) -> Iterator[str]:
    """The field and all its parents, longest first: a.b[1].c, a.b[1], a.b, a."""
    while field:
        yield field
        field = field[: max(field.rfind("."), field.rfind("["), 0)]
