"""The model's tokenizer: text to token ids and back."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterable, Sequence, Set
from pathlib import Path
from typing import Any

from triptych.errors import StartupError

from triptych_frontend.tokens.token_text import TokenTexts
from triptych_frontend.tokens.user_text import Piece, UserTextGuard, control_token_pattern


class Tokenizer:
    """A fast tokenizer of transformers, used through its Rust backend. Thread-safe.

    It uses the backend directly. transformers' own `__call__` sets truncation and padding on the backend each time, which is not
    thread-safe and takes as long as tokenizing a short text. It calls the backend's batch methods, with batches of one, because
    they release the GIL. `encode` and `decode` do not (with tokenizers 0.23, 3 MB of text block every other thread for 1.3 s).

    Args:
        hf: a transformers tokenizer with a `backend_tokenizer`.
    """

    def __init__(self, hf: Any) -> None:
        #: transformers' tokenizer, for chat templates.
        self.hf = hf
        #: tokenizers.Tokenizer
        self.backend = hf.backend_tokenizer
        self.backend.no_truncation()
        self.backend.no_padding()
        added = self.backend.get_added_tokens_decoder()
        #: token id -> tokenizers.AddedToken, special or not.
        self.added_tokens: dict[int, Any] = dict(added)
        self.special_token_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        #: Text -> id of the special tokens.
        self.special_ids = {token.content: token_id for token_id, token in added.items() if token.special}
        self.token_texts = TokenTexts(self.backend, {token_id: token.content for token_id, token in added.items()})
        self._special_pattern = control_token_pattern(token.content for token in added.values() if token.special)
        letter, line_break = self.encode("a", add_special_tokens=False), self.encode("\n", add_special_tokens=False)
        #: The ids that `_without_prefix` cuts off, and whether that is necessary.
        self._anchor_ids = line_break
        self._prefixes_start = self.encode("\na", add_special_tokens=False)[len(line_break) :] != letter
        #: Tokens that the tokenizer adds before and after a text, e.g. a begin-of-sequence token.
        self.around_text = _around(self.encode("a", add_special_tokens=True), letter)

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """Load from a model directory. Raises StartupError if it has no fast tokenizer."""
        from transformers import AutoTokenizer  # late import: see no_torch

        try:
            hf = AutoTokenizer.from_pretrained(str(path), local_files_only=True)
        except (OSError, ValueError, KeyError, ImportError) as error:
            if not (path / "tokenizer.json").is_file():
                raise StartupError(
                    f"{path} has no tokenizer.json (a fast tokenizer), and none can be made from its files"
                ) from error
            raise StartupError(f"cannot load the tokenizer in {path}: {str(error).splitlines()[0]}") from error
        if getattr(hf, "backend_tokenizer", None) is None:
            raise StartupError(f"{path} has no tokenizer.json (a fast tokenizer); {type(hf).__name__} is not supported")
        tokenizer = cls(hf)
        _give_memory_back()
        return tokenizer

    def lowercase(self) -> None:
        """Make texts lower case from now on, except special tokens."""
        from tokenizers import normalizers

        own = self.backend.normalizer
        self.backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *([] if own is None else [own])])

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Token ids. The text of special tokens becomes those tokens.

        Args:
            add_special_tokens: add the tokens that the tokenizer puts around a text, such as a begin-of-sequence token.
        """
        ids: list[int] = self.backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        return ids

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool) -> list[list[int]]:
        """Like `encode` for several texts, on several cores."""
        return [one.ids for one in self.backend.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)]

    @property
    def cuts_left(self) -> bool:
        """Whether the checkpoint wants texts that are too long to lose their first tokens."""
        return bool(self.hf.truncation_side == "left")

    def encode_inner(self, text: str) -> list[int]:
        """Token ids of a text inside of another one: without special tokens around it and without a space added before it."""
        return self._without_prefix(text, lambda inner: self.encode(inner, add_special_tokens=False))

    def encode_with_offsets(self, text: str, add_special_tokens: bool) -> tuple[list[int], list[tuple[int, int]]]:
        """Token ids, and the range of each token's text: (start, end) in characters."""
        encoding = self.backend.encode_batch([text], add_special_tokens=add_special_tokens)[0]
        return encoding.ids, encoding.offsets

    def encode_user_text(self, text: str, add_special_tokens: bool) -> list[int]:
        """Token ids of a user's text: the text of special tokens stays plain text. Raises ValueError like `encode_pieces`."""
        guard = UserTextGuard(self._special_pattern)
        ids = self.encode_pieces(guard.pieces(guard.protect(text)), self.special_token_ids)
        before, after = self.around_text if add_special_tokens else ([], [])
        return [*before, *ids, *after]

    def encode_pieces(self, pieces: Iterable[Piece], forbidden_ids: Set[int]) -> list[int]:
        """Token ids of a text in pieces. The text of added tokens becomes those tokens, except in plain pieces.

        Args:
            forbidden_ids: tokens that plain pieces must not contain.

        Raises:
            ValueError: a plain piece cannot be encoded without one of them.
        """
        ids: list[int] = []
        plain: dict[str, list[int]] = {}
        for number, piece in enumerate(pieces):
            if piece.is_plain:
                if piece.text not in plain:
                    plain[piece.text] = self._encode_plain(piece.text, forbidden_ids)
                ids += plain[piece.text]
            elif number == 0:
                ids += self.encode(piece.text, add_special_tokens=False)
            else:
                ids += self.encode_inner(piece.text)
        return ids

    def _encode_plain(self, text: str, forbidden_ids: Set[int]) -> list[int]:
        ids = self._without_prefix(text, self._encode_without_added_tokens)
        if forbidden_ids.isdisjoint(ids):
            return ids
        # The model's own vocabulary has the token's text as a word, as in Unigram models. Encode it character by character.
        ids = [token_id for char in text for token_id in self._without_prefix(char, self._encode_without_added_tokens)]
        if not forbidden_ids.isdisjoint(ids):
            raise ValueError(f"the tokenizer cannot spell {text!r} as plain text")
        return ids

    def _encode_without_added_tokens(self, text: str) -> list[int]:
        backend = self.backend
        if backend.normalizer is not None:
            text = backend.normalizer.normalize_str(text)
        words = [text] if backend.pre_tokenizer is None else [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)]
        return [token.id for word in words for token in backend.model.tokenize(word)]

    def _without_prefix(self, text: str, encode: Callable[[str], list[int]]) -> list[int]:
        """Encode a text without the space that some tokenizers add before it.

        For such a tokenizer, it encodes a line break plus the text, and cuts the line break off. transformers' `_encode_chat_piece`
        does the same.
        """
        if not self._prefixes_start:
            return encode(text)
        ids = encode("\n" + text)
        num_anchor = len(self._anchor_ids)
        return ids[num_anchor:] if ids[:num_anchor] == self._anchor_ids else encode(text)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool) -> str:
        """The text of token ids, all at once."""
        text: str = self.backend.decode_batch([token_ids], skip_special_tokens=skip_special_tokens)[0]
        return text

    def special_ids_of(self, texts: Iterable[str]) -> frozenset[int]:
        """The special tokens with one of these texts."""
        return frozenset(self.special_ids[text] for text in texts if text in self.special_ids)

    def id_of(self, text: str) -> int | None:
        """The id of the token that the vocabulary, or what was added to it, spells like this; None if there is none."""
        token_id: int | None = self.backend.token_to_id(text)
        return token_id

    def tokens(self, token_ids: Sequence[int]) -> list[str]:
        """The vocabulary's own string of each token; empty for ids without a token."""
        return [self.backend.id_to_token(token_id) or "" for token_id in token_ids]

    def __len__(self) -> int:
        size: int = self.backend.get_vocab_size(with_added_tokens=True)
        return size


def _around(ids: list[int], inner: list[int]) -> tuple[list[int], list[int]]:
    """The ids before and after `inner` in `ids`."""
    for start in range(len(ids) - len(inner) + 1):
        if ids[start : start + len(inner)] == inner:
            return ids[:start], ids[start + len(inner) :]
    return [], []


def _give_memory_back() -> None:
    """Return the memory for parsing the vocabulary to the system. glibc would keep it: about 30 MB with 49,152 tokens."""
    gc.collect()
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
