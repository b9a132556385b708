"""Token ids to text while the ids arrive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tokenizers.decoders import DecodeStream

if TYPE_CHECKING:
    from triptych_frontend.tokens.tokenizer import Tokenizer

#: Tokens of the prompt that decide whether the first output token begins with a space.
_NUM_CONTEXT_TOKENS = 6
#: No character has so many tokens. When so many are pending, they are broken bytes, and are passed on as U+FFFD.
_MAX_PENDING_TOKENS = 64


class IncrementalDetokenizer:
    """The text of one growing sequence, in whole characters.

    The pieces of `feed` and `flush`, joined, are what decoding all ids at once gives. Bytes of an incomplete character wait for
    more. Bytes that never become a character come out as U+FFFD.

    Args:
        prompt_token_ids: what the sequence continues. Only its last tokens are used, and its text is not repeated.
        skip_special_tokens: leave special tokens out of the text.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int] = (), skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._skipped_ids = tokenizer.special_token_ids if skip_special_tokens else frozenset()
        #: Ids whose text was passed on last. Later ids are decoded behind them.
        self._context: list[int] = []
        #: Ids whose text is not certain yet.
        self._pending: list[int] = []
        tail = list(prompt_token_ids[-_NUM_CONTEXT_TOKENS:])
        # A prompt that ends inside a character cannot be the context: its broken bytes would come out again with the first token.
        if tail and not tokenizer.decode(tail, skip_special_tokens).endswith("\ufffd"):
            self._context = tail
        self._stream = DecodeStream(ids=list(self._context), skip_special_tokens=skip_special_tokens)

    def feed(self, token_id: int) -> str:
        """Take one more id. Returns the text that became certain: often one word, sometimes nothing."""
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
        """The text of the pending ids, with U+FFFD for broken bytes. More ids may follow."""
        if not self._pending:
            return ""
        before = self._tokenizer.decode(self._context, self._skip)
        text = self._tokenizer.decode(self._context + self._pending, self._skip)
        self._context, self._pending = self._pending[-_NUM_CONTEXT_TOKENS:], []
        self._stream = DecodeStream(ids=[], skip_special_tokens=self._skip)
        return text[len(before) :]
