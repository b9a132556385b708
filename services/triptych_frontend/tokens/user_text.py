"""Prevents users from forging chat turns: special tokens in their text stay text.

A chat template writes its own special tokens (`<|im_start|>`) and the users' text into one string, in which they cannot be
distinguished. So before rendering, the text of each special token in a user's string is replaced by an unguessable placeholder.
After rendering, the string is split at the placeholders, and the users' text is tokenized there as plain text.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

_INDEX_DIGITS = 6


class Piece(NamedTuple):
    """A stretch of a rendered prompt."""

    text: str
    #: Special tokens in the text are a user's text, not tokens.
    is_plain: bool


class UserTextGuard:
    """Replaces control tokens in the strings of one request, and finds them again after rendering.

    A placeholder consists only of decimal digits. Templates apply filters to text (trim, upper, tojson, escape), and none of them
    changes digits. The first 32 digits are random, and new for each request.

    Args:
        control_tokens: matches the texts that must not be read as tokens, see `control_token_pattern`.
        normalize: the tokenizer's normalizer, if the tokenizer applies it before it looks for control tokens.
    """

    def __init__(self, control_tokens: re.Pattern[str], normalize: Callable[[str], str] | None = None) -> None:
        self._control_tokens = control_tokens
        self._normalize = normalize
        self._nonce = f"{secrets.randbelow(10**32):032d}"
        #: placeholder index -> original text
        self._originals: list[str] = []
        self._placeholder = re.compile(f"{self._nonce}([0-9]{{{_INDEX_DIGITS}}})")

    def protect(self, value: Any) -> Any:
        """The same value, with control tokens in its strings replaced, including strings and keys in lists and dictionaries."""
        if isinstance(value, str):
            return self._protect_text(value)
        if isinstance(value, list):
            return [self.protect(item) for item in value]
        if isinstance(value, dict):
            return {self.protect(key): self.protect(item) for key, item in value.items()}
        return value

    def as_plain(self, text: str) -> str:
        """A placeholder for the whole text, which is then tokenized separately."""
        return self._placeholder_for(text) if text else text

    def _protect_text(self, text: str) -> str:
        protected = self._control_tokens.sub(lambda match: self._placeholder_for(match[0]), text)
        if self._normalize is not None and self._control_tokens.search(self._normalize(protected)):
            # Normalization creates a control token ("＜" becomes "<"), so its position in the text is unknown.
            return self._placeholder_for(text)
        return protected

    def _placeholder_for(self, text: str) -> str:
        if text not in self._originals:
            self._originals.append(text)
        return f"{self._nonce}{self._originals.index(text):0{_INDEX_DIGITS}d}"

    def restore(self, rendered: str) -> str:
        """The rendered text, with the users' text instead of the placeholders."""
        return "".join(piece.text for piece in self.pieces(rendered))

    def pieces(self, rendered: str) -> Iterator[Piece]:
        """Split rendered text at the placeholders, and insert the users' text there."""
        if not self._originals:
            yield Piece(rendered, False)
            return
        # split() with one group alternates: text, index, text, index, ..., text
        for number, part in enumerate(self._placeholder.split(rendered)):
            if number % 2:
                yield Piece(self._originals[int(part)], True)
            elif part:
                yield Piece(part, False)


def control_token_pattern(texts: Iterable[str]) -> re.Pattern[str]:
    """Matches any of the texts, longer ones first. Without texts it matches nothing."""
    longest_first = sorted(set(texts), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
