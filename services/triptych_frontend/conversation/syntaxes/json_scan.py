"""Helpers for JSON in the text of models: finds the end of a value that arrives character by character."""

from __future__ import annotations

import json

_CLOSING = {"{": "}", "[": "]"}
_ENDS_OF_SCALARS = frozenset(",}]")


class RefusedError(Exception):
    """A character does not belong to the format."""


class JsonScan:
    """Finds the end of one JSON value. It checks brackets and strings only.

    Args:
        first: the value's first character.
    """

    def __init__(self, first: str) -> None:
        self.is_scalar = first not in '{["'
        self._is_in_string = first == '"'
        self._is_escaped = False
        #: The brackets that must close, innermost last.
        self._closing = [_CLOSING[first]] if first in _CLOSING else []

    def ends_before(self, char: str) -> bool:
        """Whether the value is a number or a word, and ended with the character before this one."""
        return self.is_scalar and (char in _ENDS_OF_SCALARS or char.isspace())

    def feed(self, char: str) -> bool:
        """Take the next character, after the first. Returns whether it ends the value. Raises RefusedError."""
        if self._is_in_string:
            if self._is_escaped:
                self._is_escaped = False
            elif char == "\\":
                self._is_escaped = True
            elif char == '"':
                self._is_in_string = False
                return not self._closing
        elif char == '"':
            self._is_in_string = True
        elif char in _CLOSING:
            self._closing.append(_CLOSING[char])
        elif char in "}]":
            if not self._closing or self._closing.pop() != char:
                raise RefusedError
            return not self._closing
        return False


def no_number(name: str) -> None:
    """`parse_constant` of `json.loads`, which otherwise takes NaN and Infinity. Raises ValueError."""
    raise ValueError(f"{name} is no number in JSON")


def is_text(value: str) -> bool:
    """Whether a decoded string can be sent. An escape in JSON or Python may stand for half a character."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def escaped(text: str) -> str:
    """The text as it stands inside of a string in JSON."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
