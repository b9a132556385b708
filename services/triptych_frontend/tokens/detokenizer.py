"""Token ids to text, as the ids arrive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tokenizers.decoders import DecodeStream

if TYPE_CHECKING:
    from triptych_frontend.tokens.tokenizer import Tokenizer

#: Last tokens of the prompt, which decide whether the first output token begins with a space.
_NUM_CONTEXT_TOKENS = 6
#: No character has this many tokens. If this many are pending, they are broken bytes, and become U+FFFD.
_MAX_PENDING_TOKENS = 64


class IncrementalDetokenizer:
    """The text of one growing sequence, in whole characters.

    The joined results of `feed` and `flush` equal the text of all ids decoded at once. Bytes of an incomplete character wait for
    more. Bytes that never become a character become U+FFFD.

    Args:
        prompt_token_ids: the prompt before the sequence. Only its last tokens are used, and its text is not repeated.
        skip_special_tokens: leave special tokens out of the text.
        kept_ids: special tokens that are never left out, because a later stage needs their text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: Sequence[int] = (),
        skip_special_tokens: bool = True,
        kept_ids: frozenset[int] = frozenset(),
    ) -> None:
        self._tokenizer = tokenizer
        self._skipped_ids = tokenizer.special_token_ids - kept_ids if skip_special_tokens else frozenset()
        # The backend can only skip all special tokens. If some are kept, it never gets the others.
        self._skip = skip_special_tokens = skip_special_tokens and not kept_ids
        #: Ids whose text was returned last. Later ids are decoded after them.
        self._context: list[int] = []
        #: Ids whose text is not certain yet.
        self._pending: list[int] = []
        tail = list(prompt_token_ids[-_NUM_CONTEXT_TOKENS:])
        if kept_ids:
            tail = [token_id for token_id in tail if token_id not in self._skipped_ids]
        # A prompt that ends inside a character cannot be the context: its broken bytes would appear again with the first token.
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
            # DecodeStream raises a bare Exception if a decoder changes text that was already returned.
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
