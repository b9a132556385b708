"""Token ids to text, as the ids arrive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tokenizers.decoders import DecodeStream

if TYPE_CHECKING:
    from triptych_frontend.tokens.tokenizer import Tokenizer

#: Prompt tokens that decide how the first output token begins (with a space or without).
_NUM_CONTEXT_TOKENS = 6
#: No character spans that many tokens: when so many are pending, they are broken bytes, and are passed on as U+FFFD.
_MAX_PENDING_TOKENS = 64


class IncrementalDetokenizer:
    """The text of one growing sequence, in whole characters.

    The pieces of `feed` and `flush` together are what decoding all ids at once gives. Bytes that are no whole character yet wait
    for more; bytes that never become one come out as U+FFFD.

    Args:
        prompt_token_ids: what the sequence continues; only its tail is looked at. Its text is not repeated.
        skip_special_tokens: leave special tokens out of the text.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int] = (), skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._skipped_ids = tokenizer.special_token_ids if skip_special_tokens else frozenset()
        #: Ids whose text was passed on last; what follows is decoded after them.
        self._context: list[int] = []
        #: Ids whose text is not certain yet.
        self._pending: list[int] = []
        tail = list(prompt_token_ids[-_NUM_CONTEXT_TOKENS:])
        # A prompt that ends inside a character is no context: its broken bytes would come out again with the first token.
        if tail and not tokenizer.decode(tail, skip_special_tokens).endswith("\ufffd"):
            self._context = tail
        self._stream = DecodeStream(ids=list(self._context), skip_special_tokens=skip_special_tokens)

    def feed(self, token_id: int) -> str:
        """Take one more id; returns the text that became certain, often one word, sometimes nothing."""
        if token_id in self._skipped_ids:
            return ""
        self._pending.append(token_id)
        try:
            text = self._stream.step(self._tokenizer.backend, token_id)
        except Exception:
            # DecodeStream raises a bare Exception when a decoder changes text that was passed on already.
            return self.flush()
        if text is not None:
            self._context, self._pending = self._pending, []
            return text
        return self.flush() if len(self._pending) >= _MAX_PENDING_TOKENS else ""

    def flush(self) -> str:
        """The text of what is pending, U+FFFD for broken bytes; the sequence may go on afterwards."""
        if not self._pending:
            return ""
        before = self._tokenizer.decode(self._context, self._skip)
        text = self._tokenizer.decode(self._context + self._pending, self._skip)
        self._context, self._pending = self._pending[-_NUM_CONTEXT_TOKENS:], []
        self._stream = DecodeStream(ids=[], skip_special_tokens=self._skip)
        return text[len(before) :]
