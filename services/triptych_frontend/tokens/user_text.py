"""User text cannot forge a chat turn: special tokens written by users stay text.

A chat template mixes its own special tokens (`<|im_start|>`) with what users wrote, into one string. Whoever tokenizes that
string can no longer tell the two apart. So before rendering, each special token's text in a user's string is replaced by a
placeholder that nobody can guess; after rendering, the string is cut at the placeholders, and what they stand for is tokenized
as plain text.
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
    #: Special tokens in it are a user's text, no tokens.
    is_plain: bool


class UserTextGuard:
    """Replaces control tokens in the strings of one request, and finds them again after rendering.

    Placeholders are decimal digits, and nothing else, because templates pass text through filters (trim, upper, tojson,
    escape): digits come out of each as they went in. The first 32 are random and fresh for each request.

    Args:
        control_tokens: matches each text that must not be read as a token, see `control_token_pattern`.
        normalize: the tokenizer's normalizer, when it is applied before control tokens are looked for.
    """

    def __init__(self, control_tokens: re.Pattern[str], normalize: Callable[[str], str] | None = None) -> None:
        self._control_tokens = control_tokens
        self._normalize = normalize
        self._nonce = f"{secrets.randbelow(10**32):032d}"
        #: placeholder index -> original text
        self._originals: list[str] = []
        self._placeholder = re.compile(f"{self._nonce}([0-9]{{{_INDEX_DIGITS}}})")

    def protect(self, value: Any) -> Any:
        """The same value, control tokens in its strings replaced; goes into lists and dictionaries, their keys included."""
        if isinstance(value, str):
            return self._protect_text(value)
        if isinstance(value, list):
            return [self.protect(item) for item in value]
        if isinstance(value, dict):
            return {self.protect(key): self.protect(item) for key, item in value.items()}
        return value

    def as_plain(self, text: str) -> str:
        """A placeholder for the text as a whole, which then is tokenized by itself."""
        return self._placeholder_for(text) if text else text

    def _protect_text(self, text: str) -> str:
        protected = self._control_tokens.sub(lambda match: self._placeholder_for(match[0]), text)
        if self._normalize is not None and self._control_tokens.search(self._normalize(protected)):
            # It becomes a control token only by being normalized ("＜" to "<"), so where it stands is not known.
            return self._placeholder_for(text)
        return protected

    def _placeholder_for(self, text: str) -> str:
        if text not in self._originals:
            self._originals.append(text)
        return f"{self._nonce}{self._originals.index(text):0{_INDEX_DIGITS}d}"

    def restore(self, rendered: str) -> str:
        """Rendered text with the users' text back in its place."""
        return "".join(piece.text for piece in self.pieces(rendered))

    def pieces(self, rendered: str) -> Iterator[Piece]:
        """Cut rendered text at the placeholders, and put the users' text back in their place."""
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
    """Matches any of the texts, longer ones first; matches nothing when there are none."""
    longest_first = sorted(set(texts), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
