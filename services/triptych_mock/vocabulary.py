"""The mock's tokenizer: a token is a word with the white space before it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from triptych.errors import InvalidRequestError

#: Ids of tokens; the first 256 stand for single bytes.
VOCAB_SIZE = 1 << 20
_NUM_BYTES = 256
#: Characters of all words together.
_MAX_CHARS = 64 << 20
_WORD = re.compile(r"\s*\S+|\s+$")


def words(text: str) -> list[str]:
    """The tokens of a text. Joined, they are the text."""
    return _WORD.findall(text)


class Vocabulary:
    """Gives each word an id when it is first seen. When all ids are taken, or the words fill 64 Mi
    characters, further words become their UTF-8 bytes."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._words: list[str] = []
        self._num_chars = 0

    def encode(self, text: str) -> list[int]:
        """The token ids of a text."""
        return [token_id for word in words(text) for token_id in self.ids(word)]

    def ids(self, word: str) -> list[int]:
        """The ids of one word: one, or one for each byte."""
        known = self._ids.get(word)
        if known is not None:
            return [known]
        if len(self._words) == VOCAB_SIZE - _NUM_BYTES or self._num_chars + len(word) > _MAX_CHARS:
            return list(word.encode())
        self._ids[word] = token_id = _NUM_BYTES + len(self._words)
        self._words.append(word)
        self._num_chars += len(word)
        return [token_id]

    def decode(self, token_ids: Iterable[int], field: str = "token_ids") -> str:
        """The text of token ids. Raises InvalidRequestError for an id that no text has had."""
        return b"".join(self.utf8(token_id, f"{field}[{index}]") for index, token_id in enumerate(token_ids)).decode(
            errors="replace"
        )

    def utf8(self, token_id: int, field: str) -> bytes:
        """The bytes of one token."""
        if token_id < _NUM_BYTES:
            return bytes([token_id])
        if token_id - _NUM_BYTES < len(self._words):
            return self._words[token_id - _NUM_BYTES].encode()
        raise InvalidRequestError(f"{field}: the mock has given no token the id {token_id}", field=field, value=token_id)
