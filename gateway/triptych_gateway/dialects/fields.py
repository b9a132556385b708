"""Errors in the client's words: the contract's names of fields become the dialect's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from triptych_common.errors import TriptychError

#: The contract's path of a field -> the client's. A path stands for all below it, and the longest that fits counts. An empty name
#: means that the client has no such level: with {"options": ""}, `options.n` is the client's `n`.
FieldNames = Mapping[str, str]


def in_client_terms(error: TriptychError, names: FieldNames) -> TriptychError:
    """The error with its field named as the client named it, in the field and in the message."""
    paths = [path for path in _paths(error.field) if path in names]
    if not paths:
        return error
    renamed = (names[paths[0]] + error.field.removeprefix(paths[0])).removeprefix(".")
    message = error.message.replace(error.field, renamed)
    # The message may name what the field is a part of.
    for path in paths:
        if names[path]:
            message = message.replace(path, names[path])
    return type(error)(message, field=renamed, limit=error.limit, value=error.value, retry_after_s=error.retry_after_s)


def _paths(field: str) -> Iterator[str]:
    """The field and all that it is a part of, longest first: a.b[1].c, a.b[1], a.b, a."""
    while field:
        yield field
        field = field[: max(field.rfind("."), field.rfind("["), 0)]
