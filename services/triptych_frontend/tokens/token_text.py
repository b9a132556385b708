"""The text and the bytes of single tokens, including tokens that are part of a character."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_CACHE_SIZE = 16_384


class TokenText(NamedTuple):
    """A token by itself."""

    #: Bytes that are not a whole character become U+FFFD.
    text: str
    #: UTF-8 bytes of the token, possibly only a part of a character.
    data: bytes


class TokenTexts:
    """Text and bytes of each token of a vocabulary, looked up as needed.

    A token that is decoded alone loses its leading space, or the bytes of half a character. So this class reads the vocabulary's
    own string of the token and interprets it like the tokenizer's decoder: byte-level (GPT-2's 256 printable characters for bytes),
    byte fallback (`<0x0A>`), or plain with U+2581 for a space.

    Args:
        backend: a tokenizers.Tokenizer.
        added_tokens: token id -> text of the tokens that were added to the model's vocabulary.
    """

    def __init__(self, backend: Any, added_tokens: Mapping[int, str]) -> None:
        self._backend = backend
        self._added_tokens = added_tokens
        self._is_byte_level = "ByteLevel" in _decoder_types(backend)
        self.get = lru_cache(_CACHE_SIZE)(self._get)

    def _get(self, token_id: int) -> TokenText:
        data = self._bytes(token_id)
        return TokenText(data.decode("utf-8", errors="replace"), data)

    def _bytes(self, token_id: int) -> bytes:
        if token_id in self._added_tokens:
            return self._added_tokens[token_id].encode()
        token: str | None = self._backend.id_to_token(token_id)
        if token is None:  # a row of the model's embedding matrix that no token uses
            return b""
        if self._is_byte_level:
            stand_ins = _bytes_by_stand_in()
            return b"".join(stand_ins.get(char) or char.encode() for char in token)
        if match := _BYTE_TOKEN.fullmatch(token):
            return bytes([int(match[1], 16)])
        return token.replace("\u2581", " ").encode()

    def clear(self) -> int:
        """Clear the cache. Returns the number of tokens that it held."""
        size = self.get.cache_info().currsize
        self.get.cache_clear()
        return size


def _decoder_types(backend: Any) -> set[str]:
    """Type names in the tokenizer's decoder, e.g. {"Sequence", "ByteFallback", "Fuse"}."""
    if backend.decoder is None:
        return set()
    # Pickling is the only public way to read a decoder's configuration. The state is JSON.
    state = json.loads(backend.decoder.__getstate__())
    return {state["type"], *(part["type"] for part in state.get("decoders", ()))}


@lru_cache(1)
def _bytes_by_stand_in() -> dict[str, bytes]:
    """Printable character -> its byte in byte-level vocabularies.

    GPT-2's table (`bytes_to_unicode` in github.com/openai/gpt-2, encoder.py): printable Latin-1 bytes represent themselves, the
    others are represented by the characters from U+0100 on.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): bytes([byte]) for byte in printable}
    return table | {chr(0x100 + n): bytes([byte]) for n, byte in enumerate(others)}
