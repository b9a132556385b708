"""The tokenizer in the form that llguidance takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llguidance import LLTokenizer


def constraint_tokenizer(backend: Any, vocab_size: int, eos_token_ids: Sequence[int]) -> LLTokenizer:
    """llguidance's tokenizer. It takes up to a second, in which no other Python thread runs.

    Its `eos_tokens` all have a logit. Without any, llguidance would guess a token by its name, or take token 0.

    Args:
        backend: a `tokenizers.Tokenizer`; not changed.
        vocab_size: number of the model's logits. Vocabularies are often padded, so it may exceed the tokenizer's.
        eos_token_ids: tokens that end a sequence where the constraint allows an end. Those without a logit are left out. If none
            is left, the first special token with a logit marks the end: it is part of no text.

    Raises:
        ValueError: llguidance cannot use the tokenizer, or no token can mark the end.
    """
    from llguidance import LLTokenizer
    from tokenizers import Tokenizer

    if backend.padding is not None or backend.truncation is not None:
        backend = Tokenizer.from_str(backend.to_str())
        backend.no_padding()
        backend.no_truncation()
    ends = [token_id for token_id in eos_token_ids if token_id < vocab_size]
    if not ends:
        special = (token_id for token_id, token in backend.get_added_tokens_decoder().items() if token.special)
        ends = sorted(token_id for token_id in special if token_id < vocab_size)[:1]
    if not ends:
        raise ValueError("it has no special token that could mark the end of an output")
    num_tokens = max(vocab_size, backend.get_vocab_size(with_added_tokens=True))
    return LLTokenizer(backend.to_str(), n_vocab=num_tokens, eos_token=ends)
